"""Trip counts of loops in gradients: as constants, as emitted code, and the most that is allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.trips import CountedLoop, trip_count
from qdtrace.errors import GradientError
from qdtrace.ir.primitives import FOR
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn

MOST_TRIPS = 1 << 30
"""Most iterations of a loop in a gradient: their numbers, and multiples of a stride beyond them, must fit in i32."""
NUMBER = "number"
"""Part of the key of a loop's iteration number in an environment."""
TOO_MANY = f"needs at most 2**{MOST_TRIPS.bit_length() - 1} iterations of a loop that a gradient goes back through"


def constant_trips(loop: Eqn) -> int | None:
    """Returns the trip count of a `for` with constant bounds; None for other loops."""
    return trip_count(*loop.bounds) if loop.primitive is FOR else None


def is_counted(loop: Eqn) -> bool:
    """Returns whether the trip count of a loop is known before it runs."""
    return loop.primitive is FOR and isinstance(loop.step, Literal)


class Counter:
    """Emits code that counts the iterations of a loop, from 0."""

    def __init__(self, builder: Builder, loop: Eqn, most: int | None) -> None:
        """`most` is an upper bound of the trip count, if one is known. Raises GradientError for a constant trip count
        that is too large."""
        self.builder, self.loop = builder, loop
        self.exact = constant_trips(loop)
        if self.exact is not None and self.exact > MOST_TRIPS:
            rule = f"{TOO_MANY}, got {self.exact}"
            raise GradientError(rule, loc=loop.loc, help="divide it into two loops, one in the other")
        self.is_limited = most is not None and most <= MOST_TRIPS

    def before(self, bounds: Sequence[Atom]) -> Atom | None:
        """Returns the trip count of a `for` with a constant step; None for other loops.

        The code is emitted before the loop.
        """
        if self.exact is not None:
            return literal(self.exact, DType.i32)
        if not is_counted(self.loop):
            return None
        count = CountedLoop(*bounds).emit_count(self.builder)
        self._check(count)
        return self.builder.convert(count, DType.i32)

    def next(self, t: Atom) -> Atom:
        """Returns the count after one more iteration. It saturates just above the limit, where `after` refuses it."""
        following = self.builder("add", t, literal(1, DType.i32))
        return following if self.is_limited else self.builder("min", following, literal(MOST_TRIPS + 1, DType.i32))

    def after(self, count: Atom) -> Atom:
        """Returns the trip count after the loop, and emits the check that `count` is not too large."""
        self._check(count)
        return count

    def _check(self, count: Atom) -> None:
        """Emits the check that there are not too many iterations, unless the known bound excludes it."""
        if not self.is_limited:
            self.builder.loc = self.loop.loc
            fits = self.builder("le", count, literal(MOST_TRIPS, count.dtype))
            self.builder.emit("check", fits, message=TOO_MANY)
