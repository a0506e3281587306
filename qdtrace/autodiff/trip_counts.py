"""How often a loop runs at most, where that is known when the gradient is made; and how often it may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.induction import most_iterations
from qdtrace.analysis.index.trips import trip_count
from qdtrace.errors import GradientError
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn

MOST_TRIPS = 1 << 30
"""Iterations that a loop in a gradient may have: their numbers, and multiples of a stride beyond them, are i32."""
TOO_MANY = f"needs at most 2**{MOST_TRIPS.bit_length() - 1} iterations of a loop that a gradient goes back through"


def most_trips(loop: Eqn) -> int | None:
    """The number of iterations of a `for` with constant bounds; of a `while` what a counter in its condition allows.

    None where neither is known. A `for` with a break is such a `while`, as are solvers with a largest number of steps.
    """
    if loop.primitive.name == "for":
        return trip_count(*loop.invars[:3])
    return most_iterations(loop)


class Counter:
    """Counts the iterations of a loop, from 0."""

    def __init__(self, builder: Builder, loop: Eqn) -> None:
        """Raises GradientError for a loop with a constant number of iterations that is too large."""
        self.builder, self.loc = builder, loop.loc
        self.exact = trip_count(*loop.invars[:3]) if loop.primitive.name == "for" else None
        if self.exact is not None and self.exact > MOST_TRIPS:
            rule = f"{TOO_MANY}, got {self.exact}"
            raise GradientError(rule, loc=loop.loc, help="divide it into two loops, one in the other")
        most = most_trips(loop)
        self.is_limited = most is not None and most <= MOST_TRIPS

    def next(self, t: Atom) -> Atom:
        """The number of iterations after one more. It stays where it is too large, so that it is seen to be."""
        following = self.builder("add", t, literal(1, DType.i32))
        return following if self.is_limited else self.builder("min", following, literal(MOST_TRIPS + 1, DType.i32))

    def trips(self, count: Atom) -> Atom:
        """The number of iterations behind the loop, from what was counted; a check fails when there were too many."""
        if self.exact is not None:
            return literal(self.exact, DType.i32)
        if not self.is_limited:
            self.builder.loc = self.loc
            fine = self.builder("le", count, literal(MOST_TRIPS, DType.i32))
            self.builder.emit("check", fine, message=TOO_MANY)
        return count
