"""Arithmetic progressions of integers: the values of a loop's index, and of an index over all iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.analysis.index.intervals import Interval


@frozen(slots=True)
class Progression:
    """The `count` integers `start, start + step, ...`."""

    start: int
    step: int
    count: int

    @property
    def interval(self) -> Interval | None:
        """The smallest and the largest value; None if the progression is empty."""
        last = self.start + self.step * (self.count - 1)
        return (min(self.start, last), max(self.start, last)) if self.count else None

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.start + self.step * self.count, self.step) if self.count else ())

    def clipped(self, size: int) -> Progression:
        """Returns the part of a rising progression inside `0 .. size - 1`; if it is one value, its step is 1."""
        first = max(0, -(self.start // self.step))
        last = min(self.count - 1, (size - 1 - self.start) // self.step)
        count = max(0, last - first + 1)
        return Progression(self.start + first * self.step, self.step if count > 1 else 1, count)
