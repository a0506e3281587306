"""Private arrays whose loads go on the tape, as that takes less memory than to keep the array for each iteration.

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

from qdtrace.autodiff.policy import LEAST_BITS
from qdtrace.autodiff.tape import is_tested, tape_lengths
from qdtrace.autodiff.thinning import slots_for
from qdtrace.ir.memory import WRITERS
from qdtrace.ir.program import ref_type
from qdtrace.ir.walk import walk_nested

if TYPE_CHECKING:
    from collections.abc import Container

    from qdtrace.analysis.index.most_trips import MostTrips
    from qdtrace.autodiff.volatile import Accesses
    from qdtrace.ir.program import Task, Var

LOOPS = ("for", "while")


def put_arrays_on_tape(task: Task, found: Accesses, zero: Container[Var], most: MostTrips, steps: int) -> None:
    """Adds loads of such arrays to those on the tape.

    Args:
        task: The task.
        found: Its accesses, which are added to.
        zero: Variables that are zero: their arrays are kept nowhere.
        most: The most iterations of its loops.
        steps: Iterations of which a stack would keep one state.
    """
    nested = [(e, [o for o in around if o.primitive.name in LOOPS]) for e, around in walk_nested(task.body)]
    for array in (e.outvar for e, around in nested if e.primitive.name == "cell" and not around):
        used = [(e, around) for e, around in nested if around and array in e.invars]
        written = {loop for e, around in used if e.primitive.name in WRITERS for loop in around}
        # what loops behind the last store load stays there
        last = found.last_store.get(array, 0)
        early = [pair for pair in used if pair[1][0] in written or found.number[pair[1][0]] < last]
        loads = {e: around for e, around in early if e.primitive.name == "load"}
        counts = tape_lengths(task, loads, most).values()
        if array in zero or None in counts or any(is_tested(e, loop) for e, around in loads.items() for loop in around):
            continue
        changing = {loop for around in loads.values() for loop in around if loop in written}
        states = sum(_states(most.of(loop), steps) for loop in changing)
        if sum(c for c in counts if c is not None) < states * prod(ref_type(array).shape):
            found.taped |= loads.keys()
            found.taped_arrays.add(array)


def _states(trips: int | None, steps: int) -> int:
    """How many states of a loop are kept, roughly."""
    thinned = slots_for(LEAST_BITS, trips)
    return thinned if trips is None else min(thinned, -(-trips // steps))
