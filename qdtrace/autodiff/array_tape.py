"""Private arrays whose loaded values go on the tape, where that takes less memory than to keep the array per iteration.

    t: cell[f32,65] = ...
    for k in 1:i32 : 65:i32 : 1:i32
      a: f32 = load t m                    # 64 iterations keep 64 numbers instead of 64 arrays
      ...
      store t b k

Once all loaded values are on the tape, nothing reads the content of the array: the walk back does not restore it.
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
"""Number of elements below which copying an array is cheaper than a tape of as many bytes, whose length loops carry.
A backward induction over 24 paths takes 1.4 times as long with the tape; a Cholesky factor of 8 x 8, 0.4 times."""


def put_arrays_on_tape(
    task: Task, found: Accesses, zero: Container[Var], most: MostTrips, limits: ReverseLimits
) -> None:
    """Adds loads of such arrays to the loads whose values go on the tape.

    Args:
        task: The task.
        found: Its accesses; the loads are added to `taped`, the arrays to `taped_arrays`.
        zero: Variables that are zero: such arrays are neither kept nor taped.
        most: Upper bounds of the trip counts of its loops.
        limits: The limits of reverse mode on the machine.
    """
    nested = [(e, [o for o in around if o.primitive.loops]) for e, around in walk_nested(task.body)]
    for array in (e.outvar for e, around in nested if e.primitive is CELL and not around):
        used = [(e, around) for e, around in nested if around and array in e.invars]
        written = {loop for e, around in used if e.primitive.writes for loop in around}
        # Loops after the last store load values that stay in the array.
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
    """Returns whether a tape of `loads` values is cheaper than `states` copies of the array."""
    size = prod(ref_type(array).shape)
    if size < SMALL:
        return 2 * loads < states * size
    fits = loads * array.dtype.itemsize <= limits.lane_bytes // 4
    return loads < states * size * (2 if fits else 1)


def _states(trips: int | None, steps: int) -> int:
    """Returns an estimate of how many states of a loop are kept."""
    thinned = slots_for(LEAST_BITS, trips)
    return thinned if trips is None else min(thinned, -(-trips // steps))
