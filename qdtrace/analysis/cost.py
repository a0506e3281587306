"""Cost estimates of equations and bodies, for decisions only: operations, live values, loops that may diverge.
One unit is an addition of a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.primitives import FOR, WHILE
from qdtrace.ir.program import Literal, Var, is_global
from qdtrace.ir.types import ScalarType
from qdtrace.ir.walk import free_vars, is_rare, walk_eqns, walk_often

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from qdtrace.ir.program import Atom, Block, Eqn, Task

GUESS = 16
"""Trip count that is assumed for a loop of unknown length."""
GUESSED_ITERATIONS = 4096
"""Trip count that is assumed for a task of unknown bounds."""


def code_size(block: Block) -> int:
    """Returns the operations in the code of a block, each inner block once; rare ones are left out."""
    return sum([eqn.primitive.cost for eqn in walk_often(block)])


def eqn_size(eqn: Eqn) -> int:
    """Returns the operations in the code of an equation and its blocks."""
    return eqn.primitive.cost + sum([code_size(block) for block in eqn.blocks])


def trips_of(eqn: Eqn) -> int:
    """Returns the trip count of a `for`, or a guess if its bounds are not constants."""
    known = trip_count(*eqn.bounds)
    return GUESS if known is None else known


def operations(block: Block) -> int:
    """Returns the estimated scalar operations of one execution of a block."""
    return executed(block, lambda eqn: 1 if eqn.blocks else eqn_size(eqn))


def accesses(block: Block, *, shared: bool = True) -> int:
    """Returns the estimated accesses to shared memory, or to private memory, in one execution of a block."""
    return executed(block, lambda eqn: int(eqn.primitive.is_access and is_global(eqn.invars[0]) == shared))


def executed(block: Block, of: Callable[[Eqn], int]) -> int:
    """Returns the sum of `of` over the equations, each times its estimated number of executions."""
    return sum([_met(eqn, of) for eqn in block.eqns])


def _met(eqn: Eqn, of: Callable[[Eqn], int]) -> int:
    once = of(eqn) + (0 if is_rare(eqn) else sum([executed(block, of) for block in eqn.blocks]))
    prim = eqn.primitive
    return once * (max(1, trips_of(eqn)) if prim is FOR else GUESS if prim is WHILE else 1)


def work(task: Task) -> int:
    """Returns the estimated scalar operations of all iterations of a task."""
    iterations = trip_count(task.start, task.stop)
    return (GUESSED_ITERATIONS if iterations is None else iterations) * max(1, operations(task.body))


def has_open_loop(task: Task) -> bool:
    """Returns whether trip counts may differ between iterations: a `while`, or a `for` without constant bounds."""
    return any(
        eqn.primitive is WHILE
        or (eqn.primitive is FOR and not all(isinstance(a, Literal) for a in eqn.bounds))
        for eqn in walk_eqns(task.body)
    )


def peak_live(block: Block, counted: Container[object] | None = None, after: Iterable[Var] = ()) -> int:
    """Returns the largest number of values that are live at once inside a block, at whose end those `after` are live.

    `counted`: values that count, and in a block with loops only while these run, as a few spills around them cost
    little; None: all scalars, everywhere.
    """
    live = {*after, *_counted(block.results, counted)}
    peak, inner = len(live), 0
    for eqn in reversed(block.eqns):
        live.difference_update(eqn.outvars)
        for part in () if is_rare(eqn) else eqn.blocks:  # values that only a rare block needs may be spilled
            free = _counted(free_vars(part), counted)
            high = peak_live(part, counted, live | free if eqn.primitive.loops else live)
            if eqn.primitive.loops and counted is not None:
                inner = max(inner, high)
            else:
                peak = max(peak, high)
            live |= free
        live |= _counted(eqn.invars, counted)
        peak = max(peak, len(live))
    return inner or peak


def _counted(atoms: Iterable[Atom], counted: Container[object] | None) -> set[Var]:
    scalars = {a for a in atoms if isinstance(a, Var) and isinstance(a.type, ScalarType)}
    return scalars if counted is None else {v for v in scalars if v in counted}
