"""Decides for each private array whether its loaded values go on the tape, its stores are undone, or it is copied.

    t: cell[f32,65] = ...
    for k in 1:i32 : 65:i32 : 1:i32
      a: f32 = load t m                    # on the tape, 64 iterations keep 64 numbers instead of 64 arrays
      ...
      store t b k                          # to undo it, as many

Once all loaded values are on the tape, nothing reads the content of the array: the walk back does not restore it. That
stores are undone costs the array itself and a value for each store (`undo_log`). What takes least is chosen.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import task_values
from qdtrace.autodiff.loops.policy import LEAST_BITS, LoopSize
from qdtrace.autodiff.loops.thinning import slots_for
from qdtrace.autodiff.loops.trip_counts import constant_trips
from qdtrace.autodiff.tape import is_tested, tape_lengths
from qdtrace.autodiff.undo_plan import Planner, level_of
from qdtrace.ir.primitives import CELL, LOAD
from qdtrace.ir.program import ref_type
from qdtrace.ir.walk import walk_eqns, walk_nested

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from qdtrace.analysis.index.most_trips import MostTrips
    from qdtrace.analysis.machine import ReverseLimits
    from qdtrace.autodiff.loops.policy import Stacks
    from qdtrace.autodiff.volatile import Accesses
    from qdtrace.ir.program import Block, Eqn, Task, Var

SMALL = 64
"""Number of elements below which copying an array is cheaper than a tape of as many bytes, whose length loops carry.
A backward induction over 24 paths takes 1.4 times as long with the tape; a Cholesky factor of 8 x 8, 0.4 times."""
FEWER_RUNS = 2
"""Bytes of an undo log for a byte of copies of an array that is not small: with a log no iteration runs again for those
behind it. A put of 100 steps in 41 KB takes 5 times its value, where copies of 38 KB took 165 times."""


def choose_for_arrays(task: Task, found: Accesses, zero: Container[Var], most: MostTrips, stacks: Stacks) -> None:
    """Chooses between tape, undo log and copies for the private arrays of a task.

    Args:
        task: The task.
        found: Its accesses; loads on the tape are added to `taped`, their arrays to `taped_arrays`, and `log` is set.
        zero: Variables that are zero: such arrays are neither kept nor taped.
        most: Upper bounds of the trip counts of its loops.
        stacks: The memory of a lane and the limits of the machine.
    """
    nested = [(e, [o for o in around if o.primitive.loops]) for e, around in walk_nested(task.body)]
    arrays = [e.outvar for e, around in nested if e.primitive is CELL and not around]
    if not arrays:
        return
    limits = stacks.limits
    planner = Planner(task, most, limits, stacks.log_room)
    found.log = planner.log
    for array in arrays:
        used = [(e, around) for e, around in nested if around and array in e.invars]
        written = {loop for e, around in used if e.primitive.writes for loop in around}
        # Loops after the last store load values that stay in the array.
        last = found.last_store.get(array, 0)
        early = [pair for pair in used if pair[1][0] in written or found.number[pair[1][0]] < last]
        loads = {e: around for e, around in early if e.primitive is LOAD}
        changing = {loop for around in loads.values() for loop in around if loop in written}
        if array in zero or not loads:
            continue
        states = {loop: _states(loop, most.of(loop), limits.steps) for loop in changing}
        counts = tape_lengths(task, loads, most).values()
        is_taped = None not in counts and not any(is_tested(e, loop) for e, around in loads.items() for loop in around)
        length = sum(c for c in counts if c is not None)
        if is_taped and _pays(array, length, sum(states.values()), limits):
            tape, values = length * array.dtype.itemsize, task_values(task)
            room, rest = stacks.room(None if values is None else values.count, tape), tape - ref_type(array).nbytes
            if not planner.plan(array, task.body, lambda n, m=rest: n <= m, room):
                found.taped |= loads.keys()
                found.taped_arrays.add(array)
        else:
            _plan_logs(planner, array, task.body, states)


def _plan_logs(planner: Planner, array: Var, block: Block, states: Mapping[Eqn, int]) -> None:
    """Plans logs for a block, or else for the bodies of its loops: `states` are those that each would keep."""
    type_ = ref_type(array)
    copies = sum(states[e] for e in walk_eqns(block) if e in states) * type_.nbytes
    most = copies if prod(type_.shape) < SMALL else FEWER_RUNS * copies
    if copies and not planner.plan(array, block, lambda nbytes: nbytes <= most):
        for loop in level_of(block):
            if loop in states:
                _plan_logs(planner, array, loop.blocks[-1], states)


def _pays(array: Var, loads: int, states: int, limits: ReverseLimits) -> bool:
    """Returns whether a tape of `loads` values is cheaper than `states` copies of the array."""
    size = prod(ref_type(array).shape)
    if size < SMALL:
        return 2 * loads < states * size
    fits = loads * array.dtype.itemsize <= limits.lane_bytes // 4
    return loads < states * size * (2 if fits else 1)


def _states(loop: Eqn, trips: int | None, steps: int) -> int:
    """Returns an estimate of how many states of a loop are kept: one for each segment, and those of the rest."""
    size = LoopSize(trips, 0, is_exact=constant_trips(loop) is not None, most_steps=steps)
    segments = size.segments()
    thinned = slots_for(LEAST_BITS, segments)
    return size.rest() + (thinned if segments is None else min(thinned, segments))
