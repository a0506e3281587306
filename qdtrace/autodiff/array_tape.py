"""Private arrays whose loads go on the tape, as that takes less than to keep the array for each iteration.

    t: cell[f32,65] = ...
    for k in 1:i32 : 65:i32 : 1:i32
      a: f32 = load t m                    # 64 iterations keep 64 numbers instead of 64 arrays
      ...
      store t b k

Once all that such loads find is on the tape, nobody asks for the content of the array: the walk back puts none back.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from qdtrace.autodiff.loops.policy import LEAST_BITS
from qdtrace.autodiff.loops.thinning import slots_for
from qdtrace.autodiff.tape import is_tested, tape_lengths
from qdtrace.ir.primitives import CELL, LOAD
from qdtrace.ir.program import ref_type
from qdtrace.ir.walk import walk_nested

if TYPE_CHECKING:
    from collections.abc import Container

    from qdtrace.analysis.index.most_trips import MostTrips
    from qdtrace.analysis.machine import ReverseLimits
    from qdtrace.autodiff.volatile import Accesses
    from qdtrace.ir.program import Task, Var

SMALL = 64
"""Elements of an array that is soon copied, against the number of values that loops then count. A backward induction
over 24 paths takes 1.4 times as long with a tape of as many bytes as its states; a Cholesky factor of 8 x 8, 0.4."""


def put_arrays_on_tape(
    task: Task, found: Accesses, zero: Container[Var], most: MostTrips, limits: ReverseLimits
) -> None:
    """Adds loads of such arrays to those on the tape.

    Args:
        task: The task.
        found: Its accesses, which are added to.
        zero: Variables that are zero: their arrays are kept nowhere.
        most: The most iterations of its loops.
        limits: Of the machine.
    """
    nested = [(e, [o for o in around if o.primitive.loops]) for e, around in walk_nested(task.body)]
    for array in (e.outvar for e, around in nested if e.primitive is CELL and not around):
        used = [(e, around) for e, around in nested if around and array in e.invars]
        written = {loop for e, around in used if e.primitive.writes for loop in around}
        # what loops behind the last store load stays there
        last = found.last_store.get(array, 0)
        early = [pair for pair in used if pair[1][0] in written or found.number[pair[1][0]] < last]
        loads = {e: around for e, around in early if e.primitive is LOAD}
        counts = tape_lengths(task, loads, most).values()
        if array in zero or None in counts or any(is_tested(e, loop) for e, around in loads.items() for loop in around):
            continue
        changing = {loop for around in loads.values() for loop in around if loop in written}
        states = sum(_states(most.of(loop), limits.steps) for loop in changing)
        if _pays(array, sum(c for c in counts if c is not None), states, limits):
            found.taped |= loads.keys()
            found.taped_arrays.add(array)


def _pays(array: Var, loads: int, states: int, limits: ReverseLimits) -> bool:
    """Whether to keep what so many loads found, in the place of the array in so many states."""
    size = prod(ref_type(array).shape)
    if size < SMALL:
        return 2 * loads < states * size
    fits = loads * array.dtype.itemsize <= limits.lane_bytes // 4
    return loads < states * size * (2 if fits else 1)


def _states(trips: int | None, steps: int) -> int:
    """How many states of a loop are kept, roughly."""
    thinned = slots_for(LEAST_BITS, trips)
    return thinned if trips is None else min(thinned, -(-trips // steps))
