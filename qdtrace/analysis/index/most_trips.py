"""Upper bounds on the trip counts of a task's loops, from the ranges of their bounds.

    for i in 0:i32 : 1000:i32
      n: i32 = load count i
      m: i32 = min n 64:i32
      for k in 0:i32 : m : 1:i32                 # at most 64 iterations
        for j in k : 40:i32 : 1:i32              # at most 40
      a: i32 = load row i                        # with row: ref[i32,1001] in (0, 65536, 256)
      i_1: i32 = add i 1:i32
      b: i32 = load row i_1
      for k in a : b : 1:i32                     # at most 256

A bound that is merely the largest number of its dtype says nothing of a loop, so `u16` counts are not known to be at
most 65,535. Checks say nothing either: a derivative leaves out those that the primal has made, and must not write
behind its memory where they failed. The `most` of a `for` counts, as derivatives cut such loops (`autodiff/loops/cut`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from qdtrace.analysis.index.distances import most_apart
from qdtrace.analysis.index.induction import counters
from qdtrace.analysis.index.tight_ranges import TightRanges
from qdtrace.analysis.index.trips import CountedLoop, trip_count
from qdtrace.ir.primitives import FOR, IF, WHILE
from qdtrace.ir.walk import walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qdtrace.ir.program import Eqn, Task, Var
    from qdtrace.limits import Limits

NEVER = 1 << 31
"""Trip count from which on an upper bound says nothing."""


class MostTrips:
    """Upper bounds on the trip counts of a task's loops; for a `while`, what a counter in its condition allows."""

    def __init__(self, task: Task, limits: Mapping[Var, Limits] | None = None) -> None:
        """`limits` are those of references that the task loads from."""
        self._task = task
        self._limits = limits or {}
        self.ending: dict[Eqn, CountedLoop] = {}
        """The counters whose bounds the most iterations of loops are, once these were asked for."""

    def of(self, loop: Eqn) -> int | None:
        """Returns the most iterations of a loop, or None if they are not known."""
        known = trip_count(*loop.bounds) if loop.primitive is FOR else None
        return self._by_ranges.get(loop) if known is None else known

    @cached_property
    def _by_ranges(self) -> dict[Eqn, int]:
        found: dict[Eqn, int] = {}
        _look(self._task.body.eqns, _Trips(self._task, self._limits, self.ending), found)
        return found


def _look(eqns: Iterable[Eqn], ranges: _Trips, found: dict[Eqn, int]) -> None:
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


class _Trips(TightRanges):
    """Ranges that bound loops; notes the counters that do."""

    def __init__(self, task: Task, limits: Mapping[Var, Limits], ending: dict[Eqn, CountedLoop]) -> None:
        super().__init__(task, limits)
        self._ending = ending

    def most_trips(self, loop: Eqn) -> int | None:
        """Returns the most iterations of a loop in the current scope, or None if they are not known."""
        most = int(loop.params.get("most", NEVER))
        for counted in counters(loop) if loop.primitive is WHILE else [CountedLoop.of_for(loop)]:
            trips = self._most_of(counted)
            if trips is not None and trips < most:
                most, self._ending[loop] = trips, counted
        return None if most >= NEVER else most

    def _most_of(self, counted: CountedLoop) -> int | None:
        by = counted.by
        if by is None:
            return None
        most = counted.trips(self.bound_of(counted.start), self.bound_of(counted.stop))[1]
        if not by:
            return most
        low, high = (counted.start, counted.stop) if by > 0 else (counted.stop, counted.start)
        apart = most_apart(high, low, self)
        return most if apart is None else min(most, max(0, -(-apart // abs(by))))
