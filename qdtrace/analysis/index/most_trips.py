"""Upper bounds on the trip counts of a task's loops, from the ranges of their bounds.

    for i in 0:i32 : 1000:i32
      n: i32 = load count i
      m: i32 = min n 64:i32
      for k in 0:i32 : m : 1:i32                 # at most 64 iterations
        for j in k : 40:i32 : 1:i32              # at most 40

A bound that is merely the largest number of its dtype says nothing of a loop, so `u16` counts are not known to be at
most 65,535. Checks say nothing either: a derivative leaves out those that the primal has made, and must not write
behind its memory where they failed. The `most` of a `for` counts, as derivatives cut such loops (`autodiff/loops/cut`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from qdtrace.analysis.index.flow_ranges import FlowRanges
from qdtrace.analysis.index.induction import most_iterations
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.trips import CountedLoop, trip_count
from qdtrace.ir.primitives import BOUND, CONVERT, FOR, IF, WHILE
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.program import Atom, Eqn, Task


FAR = 1 << 20
"""Ends of ranges at this distance from 0 count as unknown (half of any `i32` has one); those of constants do not."""
NEVER = 1 << 31
"""Trip count from which on an upper bound says nothing."""


class MostTrips:
    """Upper bounds on the trip counts of a task's loops; for a `while`, what a counter in its condition allows."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def of(self, loop: Eqn) -> int | None:
        """Returns the most iterations of a loop, or None if they are not known."""
        known = trip_count(*loop.bounds) if loop.primitive is FOR else None
        return self._by_ranges.get(loop) if known is None else known

    @cached_property
    def _by_ranges(self) -> dict[Eqn, int]:
        found: dict[Eqn, int] = {}
        _look(self._task.body.eqns, _TightRanges(self._task), found)
        return found


def _look(eqns: Iterable[Eqn], ranges: _TightRanges, found: dict[Eqn, int]) -> None:
    for eqn in eqns:
        if not eqn.blocks:
            continue
        if eqn.primitive is IF:
            for block, holds in zip(eqn.blocks, (True, False), strict=True):
                with ranges.scope(ranges.facts_of(eqn.invars[0], holds)):
                    _look(block.eqns, ranges, found)
            continue
        most = ranges.most_trips(eqn)
        if most is not None:
            found[eqn] = most
        if most == 0:  # nothing is known of what never runs
            found.update((e, 0) for e in walk_inside(eqn) if e.blocks)
            continue
        with ranges.scope(ranges.entry(eqn, ranges.carried(eqn))):
            _look(eqn.blocks[-1].eqns, ranges, found)


class _TightRanges(FlowRanges):
    """Ranges in which the largest number of a dtype becomes the largest of the dtype that it is converted to."""

    def most_trips(self, loop: Eqn) -> int | None:
        """Returns the most iterations of a loop in the current scope, or None if they are not known."""
        if loop.primitive is WHILE:
            most = most_iterations(loop, self.bound_of)
        else:
            counted = CountedLoop.of_for(loop)
            bounds = self.bound_of(counted.start), self.bound_of(counted.stop)
            most = None if counted.by is None else counted.trips(*bounds)[1]
            limit = loop.params.get("most")
            most = limit if most is None or (limit is not None and limit < most) else most
        return None if most is None or most >= NEVER else most

    def bound_of(self, atom: Atom) -> Interval:
        """Returns the range of a loop bound, open towards an end that is at least `FAR` from 0."""
        low, high = _widened(self.of(atom), atom.dtype, DType.i64)
        if isinstance(atom, Literal):
            return low, high
        whole = range_of_dtype(DType.i64)
        return whole[0] if low <= -FAR else low, whole[1] if high >= FAR else high

    def _special(self, eqn: Eqn, atom: Atom, depth: int) -> Interval | None:
        prim = eqn.primitive
        if prim is BOUND:
            return self.of(eqn.invars[0], depth - 1)
        if prim is CONVERT and eqn.invars[0].dtype.is_integer and depth > 0:
            source, whole = eqn.invars[0], range_of_dtype(atom.dtype)
            wide = _widened(self.of(source, depth - 1), source.dtype, atom.dtype)
            return wide if whole[0] <= wide[0] and wide[1] <= whole[1] else whole
        return super()._special(eqn, atom, depth)


def _widened(found: Interval, dtype: DType, wide: DType) -> Interval:
    """Returns a range in the dtype `wide`; an end that is merely that of `dtype` becomes that of `wide`."""
    if not dtype.is_integer:
        return found
    (low, high), (least, most), whole = found, range_of_dtype(dtype), range_of_dtype(wide)
    return whole[0] if low == least < 0 else low, whole[1] if high == most else high
