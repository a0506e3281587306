"""How often a loop runs at most, where that is known when the gradient is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.induction import most_iterations
from qdtrace.analysis.index.trips import trip_count

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn


def most_trips(loop: Eqn) -> int | None:
    """The number of iterations of a `for` with constant bounds; of a `while` what a counter in its condition allows.

    None where neither is known. A `for` with a break is such a `while`, as are solvers with a largest number of steps.
    """
    if loop.primitive.name == "for":
        return trip_count(*loop.invars[:3])
    return most_iterations(loop)


def exact_trips(loop: Eqn) -> int | None:
    """The number of iterations, where it is constant."""
    return trip_count(*loop.invars[:3]) if loop.primitive.name == "for" else None
