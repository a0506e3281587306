"""How often a loop runs at most, where that is known when the gradient is made; and how often it may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import trip_count
from qdtrace.errors import GradientError
from qdtrace.ir.primitives import FOR
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn

MOST_TRIPS = 1 << 30
"""Iterations that a loop in a gradient may have: their numbers, and multiples of a stride beyond them, are i32."""
TOO_MANY = f"needs at most 2**{MOST_TRIPS.bit_length() - 1} iterations of a loop that a gradient goes back through"


def constant_trips(loop: Eqn) -> int | None:
    """The number of iterations of a `for` with constant bounds."""
    return trip_count(*loop.bounds) if loop.primitive is FOR else None


def is_counted(loop: Eqn) -> bool:
    """Whether the number of iterations is known in front of a loop."""
    return constant_trips(loop) is not None or (loop.primitive is FOR and _steps_by_one(loop.step))


def _steps_by_one(step: Atom) -> bool:
    return isinstance(step, Literal) and abs(int(step.value)) == 1


class Counter:
    """Counts the iterations of a loop, from 0."""

    def __init__(self, builder: Builder, loop: Eqn, most: int | None) -> None:
        """`most` is the most iterations that there can be, where they are known. Raises GradientError for a loop with
        a constant number of iterations that is too large."""
        self.builder, self.loop = builder, loop
        self.exact = constant_trips(loop)
        if self.exact is not None and self.exact > MOST_TRIPS:
            rule = f"{TOO_MANY}, got {self.exact}"
            raise GradientError(rule, loc=loop.loc, help="divide it into two loops, one in the other")
        self.is_limited = most is not None and most <= MOST_TRIPS

    def before(self, bounds: Sequence[Atom]) -> Atom | None:
        """The number of iterations of a `for` that steps by one or has constant bounds, in front of it."""
        if self.exact is not None:
            return literal(self.exact, DType.i32)
        if not is_counted(self.loop):
            return None
        first, last = bounds[:2] if int(self.loop.step.value) == 1 else (bounds[1], bounds[0])  # type: ignore[union-attr]
        zero = literal(0, first.dtype)
        count = self.builder("select", self.builder("lt", first, last), self.builder("sub", last, first), zero)
        self._check(self.builder("ge", count, zero), self.builder("le", count, literal(MOST_TRIPS, first.dtype)))
        return self.builder.convert(count, DType.i32)

    def next(self, t: Atom) -> Atom:
        """The number of iterations after one more. It stays where it is too large, so that it is seen to be."""
        following = self.builder("add", t, literal(1, DType.i32))
        return following if self.is_limited else self.builder("min", following, literal(MOST_TRIPS + 1, DType.i32))

    def after(self, count: Atom) -> Atom:
        """The number of iterations behind the loop, from what was counted."""
        self._check(self.builder("le", count, literal(MOST_TRIPS, DType.i32)))
        return count

    def _check(self, *conditions: Atom) -> None:
        """A check that the iterations are not too many, where that is possible."""
        if not self.is_limited:
            self.builder.loc = self.loop.loc
            for condition in conditions:
                self.builder.emit("check", condition, message=TOO_MANY)
