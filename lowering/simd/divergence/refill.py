"""Lane refill: a lane that has left its loop takes the next element of the task, so lanes do not wait for the slowest.

It applies to a task whose body is: arithmetic, loads and private arrays, one divergent loop, stores. Lanes hold
elements that are not neighbours, so loads outside the loop become gathers. Between steps of the loop, if enough lanes
are idle, finished lanes store their results and take the next elements, for which the equations before the loop are
evaluated (`refill_task`). With geometric trip counts 16 lanes in step are busy 30 % of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.divergence.ordering import has_neighbours_inside
from lowering.simd.lane_facts import LaneFacts, is_quiet
from qdtrace.analysis.cost import operations
from qdtrace.analysis.index.trips import trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import CELL, FOR, LOAD, Effect
from qdtrace.ir.program import Block, Literal, Var, is_global
from qdtrace.ir.walk import walk_all, walk_often

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.target import Target
    from qdtrace.ir.program import Eqn

LEAST_BITS = 256
"""Vectors that are refilled: in shorter ones few lanes wait."""
SURE_COST, AROUND = 200, 4
"""Bodies of at least this cost, and so many times that of what is around the loop, always refill, as the service is
cheap beside them. Others measure trip counts first."""
THRICE_COST = 1000
"""The largest cost of a long loop and what is around it of which there are three copies, so that trips are measured."""
SHORT_COST = 256
"""The largest cost of a loop beside the divergent one, which the service runs for the few lanes that it serves."""
FOR_COST, WHILE_COST = 20, 100
"""The same limits for tasks that reduce, which cannot switch at run time: trip counts of a `for` over loaded bounds
differ more than those of a short `while` that converges (measured: 0.67 and 1.24 of the time with masks)."""


@frozen(eq=False)
class Refill:
    """The parts of a task's body that lane refill distinguishes."""

    shared: tuple[Eqn, ...]
    """Uniform equations, which are evaluated once; but no checks, as those have no result."""
    before: tuple[Eqn, ...]
    loop: Eqn
    after: tuple[Eqn, ...]
    measures: bool
    """True if the task decides at run time whether to refill (`spread`)."""

    @property
    def in_lanes(self) -> frozenset[Var]:
        """Parameters of the loop, which are uniform only while lanes run in step."""
        return frozenset(p for block in self.loop.blocks for p in block.params)


def find_refill(lanes: LaneFacts, target: Target, *, reduces: bool) -> Refill | None:
    """Returns the parts of a task to refill, or None if its body has another form or gains nothing, or by a hint."""
    task = lanes.facts.task
    hint = task.hints.get("refill")
    if task.kind != "range_for" or target.vector_bits < LEAST_BITS or hint is False:
        return None
    loops = [k for k, e in enumerate(task.body.eqns) if e in lanes.divergent_loops]
    if len(loops) != 1:
        return None
    before, loop, after = task.body.eqns[: loops[0]], task.body.eqns[loops[0]], task.body.eqns[loops[0] + 1 :]
    around = Block((), (*before, *after), ())
    if any(e.primitive.loops and not _is_short(e) for e in walk_often(around)):
        return None
    if any(e.primitive is CELL for e in walk_all(after)):
        return None
    if any(Effect.LANES in e.primitive.effects for e in walk_all(task.body.eqns)):
        return None
    if any(e.primitive.writes and is_global(e.invars[0]) for e in walk_all(before)):
        return None
    if not _uniform_part_is_simple(lanes, before):
        return None
    if loop.primitive is FOR and not (isinstance(loop.step, Literal) and int(loop.step.value) == 1):
        return None
    cost = sum(map(operations, loop.blocks))
    beside = operations(around)
    is_sure = hint or (cost >= SURE_COST and (AROUND * beside <= cost or cost + beside > THRICE_COST))
    least = 0 if not reduces else FOR_COST if loop.primitive is FOR else WHILE_COST
    if not is_sure and (cost < least or (is_quiet(loop) and reduces)):
        return None
    if not (hint or target.has_masks) and has_neighbours_inside(lanes):  # loads lane by lane
        return None
    is_uniform = lanes.uniformity.is_uniform
    shared = {e: None for e in before if e.outvars and all(map(is_uniform, e.outvars))}
    return Refill(tuple(shared), tuple([e for e in before if e not in shared]), loop, after, not (is_sure or reduces))


def _is_short(loop: Eqn) -> bool:
    """Returns whether a loop beside the divergent one has few iterations, as one that clears a stack."""
    trips = trip_count(*loop.bounds) if loop.primitive is FOR else None
    return trips is not None and trips * sum(map(operations, loop.blocks)) <= SHORT_COST


def _uniform_part_is_simple(lanes: LaneFacts, eqns: Sequence[Eqn]) -> bool:
    """Returns whether uniform equations before the loop can be evaluated once, ahead of everything else."""
    for eqn in eqns:
        uniform = [lanes.uniformity.is_uniform(v) for v in eqn.outvars]
        if any(uniform) and (eqn.primitive.structured or not all(uniform)):
            return False
        if any(uniform) and eqn.primitive is LOAD and eqn.invars[0] in lanes.facts.written:
            return False
    return True
