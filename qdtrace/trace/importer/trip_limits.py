"""The option `most` of `qd.range` and `qd.while_`: the most iterations of a loop, checked whatever `bounds` is.

    n: u32 = ...                                  # the trip count of lo : hi
    m: u32 = bound[size=65, axis=-1] n            # ends the call if there are more than 64
    for[most=64] k in lo : hi : 1:i32

The check stands in front of a `for`, and its bounds stay as they are, so loops over spans are still found. A `while`
counts: its condition has one more conjunct, from which reverse mode reads the limit, and behind it a check asks the
condition again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import scalar_var
from qdtrace.ir.faults import TRIPS
from qdtrace.ir.types import DType
from qdtrace.trace.importer.scalars import integer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.analysis.index.trips import CountedLoop
    from qdtrace.ir.program import Atom
    from qdtrace.trace.importer.core import Importer


def check_trips(imp: Importer, loop: CountedLoop, most: int) -> None:
    """Emits the check that a loop has at most so many iterations, unless ranges prove it."""
    count = loop.emit_count(imp.op)
    if imp.ranges.of(count)[1] > most:
        _check(imp, count, most, "qd.range")


def _check(imp: Importer, count: Atom, most: int, loop: str) -> None:
    imp.emit("bound", count, size=most + 1, axis=TRIPS, buffer=loop, shape=(most,))


class TripLimit:
    """Limits a `while` to `most` iterations by a counter that it carries in addition; None limits nothing."""

    def __init__(self, imp: Importer, most: int | None) -> None:
        self.imp, self.most = imp, most
        self.first = () if most is None else (integer(0),)
        self.tested, self.inside = (tuple(scalar_var(DType.i32, "trips") for _ in self.first) for _ in range(2))

    def goes_on(self, going: Atom) -> Atom:
        """Emits the condition: that of the loop, and fewer iterations than the limit."""
        if self.most is None:
            return going
        return self.imp.op("and", going, self.imp.op("lt", self.tested[0], integer(self.most)))

    def following(self) -> list[Atom]:
        """Emits the number of iterations after one more."""
        return [self.imp.op("add", trips, integer(1)) for trips in self.inside]

    def check_end(self, trips: Sequence[Atom], condition: Callable[[], Atom]) -> None:
        """Emits the check behind the loop that its condition does not hold, if the limit has ended it."""
        if (most := self.most) is None:
            return
        (count,), loc = trips, self.imp.loc

        def check() -> None:
            more = self.imp.convert(condition(), DType.i32)
            self.imp.loc = loc
            _check(self.imp, self.imp.op("add", count, more), most, "qd.while_")

        self.imp.if_(self.imp.op("ge", count, integer(most)), check)
