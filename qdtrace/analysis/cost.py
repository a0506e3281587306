"""Estimates of what equations and bodies cost, for decisions only: operations, live values, loops that lanes may leave
apart. One unit is an addition of a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.primitives import FOR, WHILE
from qdtrace.ir.program import Literal, Var, is_global
from qdtrace.ir.types import ScalarType
from qdtrace.ir.walk import is_rare, walk_eqns, walk_often

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.ir.program import Block, Eqn, Task

GUESS = 16
"""Trips of a loop of unknown length."""


def code_size(block: Block) -> int:
    """Operations that the code of a block has, each block inside of it once; without what hardly ever runs."""
    return sum([eqn.primitive.cost for eqn in walk_often(block)])


def eqn_size(eqn: Eqn) -> int:
    """Operations that the code of an equation has."""
    return eqn.primitive.cost + sum([code_size(block) for block in eqn.blocks])


def trips_of(eqn: Eqn) -> int:
    """Iterations of a `for`; a guess where the bounds are not constants."""
    known = trip_count(*eqn.bounds)
    return GUESS if known is None else known


def operations(block: Block) -> int:
    """Estimated scalar operations of one execution."""
    return _executed(block, lambda eqn: 1 if eqn.blocks else eqn_size(eqn))


def accesses(block: Block) -> int:
    """Estimated accesses to memory that is not the iteration's own, of one execution."""
    return _executed(block, lambda eqn: int(eqn.primitive.values is not None and is_global(eqn.invars[0])))


def _executed(block: Block, of: Callable[[Eqn], int]) -> int:
    """What the equations have, each as often as it is met."""
    return sum([_met(eqn, of) for eqn in block.eqns])


def _met(eqn: Eqn, of: Callable[[Eqn], int]) -> int:
    once = of(eqn) + (0 if is_rare(eqn) else sum([_executed(block, of) for block in eqn.blocks]))
    prim = eqn.primitive
    return once * (max(1, trips_of(eqn)) if prim is FOR else GUESS if prim is WHILE else 1)


def has_open_loop(task: Task) -> bool:
    """True when iterations may loop for different times: a `while`, or a `for` whose bounds are not constants."""
    return any(
        eqn.primitive is WHILE
        or (eqn.primitive is FOR and not all(isinstance(a, Literal) for a in eqn.bounds))
        for eqn in walk_eqns(task.body)
    )


def peak_live(block: Block) -> int:
    """Most scalars alive at once inside of the block."""
    return _peak(block)[0]


def _peak(block: Block) -> tuple[int, set[Var]]:
    """The peak, and the scalars that the block uses from outside."""
    live = {a for a in block.results if isinstance(a, Var)}
    peak = len(live)
    for eqn in reversed(block.eqns):
        live.difference_update(eqn.outvars)
        for inner in () if is_rare(eqn) else eqn.blocks:
            high, used = _peak(inner)
            peak = max(peak, high + len(live - used))
            live |= used
        live.update(a for a in eqn.invars if isinstance(a, Var) and isinstance(a.type, ScalarType))
        peak = max(peak, len(live))
    live.difference_update(block.params)
    return peak, live
