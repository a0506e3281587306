"""How often a loop over integers runs, as a scalar that the graph computes, for all bounds and steps of the dtype.

Counts and distances are unsigned: between two i32 lie up to 2**32 - 1 steps. A step of 0 runs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.analysis.ranges import range_of_dtype
from qdtrace.analysis.work import trip_count
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.ir.program import Atom

    Op = Callable[..., Any]
    Range = tuple[int, int]


def unsigned(dtype: DType) -> DType:
    """The dtype of counts for indices of a dtype."""
    return DType(f"u{dtype.bits}")


def count_of(op: Op, start: Atom, stop: Atom, step: Atom) -> Atom:
    """The iterations of `start : stop : step`, in the unsigned dtype; `op(name, *operands)` emits an equation."""
    dtype = start.dtype
    wide = unsigned(dtype)
    known = trip_count(start, stop, step)
    if known is not None:
        return literal(known, wide)
    zero, nothing, one = literal(0, dtype), literal(0, wide), literal(1, wide)

    def side(low: Atom, high: Atom, size: Atom) -> Atom:
        """Iterations of a loop from one bound towards the other."""
        distance = op("convert", op("sub", high, low), dtype=wide)
        if isinstance(size, Literal) and size.value == 1:
            count = distance
        else:
            count = op("add", op("div", op("sub", distance, one), size), one)
        return op("select", op("lt", low, high), count, nothing)

    if isinstance(step, Literal):
        size = literal(abs(int(step.value)), wide)
        return side(start, stop, size) if step.value > 0 else side(stop, start, size)
    up = side(start, stop, op("convert", step, dtype=wide))
    down = side(stop, start, op("convert", op("neg", step), dtype=wide))
    count = op("select", op("gt", step, zero), up, down)
    return op("select", op("ne", step, zero), count, nothing)


def most_trips(start: Range, stop: Range, step: Atom) -> int:
    """The most iterations that a loop with bounds in these ranges can make."""
    size = abs(int(step.value)) if isinstance(step, Literal) else 1
    rising = not isinstance(step, Literal) or step.value > 0
    falling = not isinstance(step, Literal) or step.value < 0
    distance = max(stop[1] - start[0] if rising else 0, start[1] - stop[0] if falling else 0, 0)
    return -(-distance // size) if size else 0


def may_pass_the_end(stop: Range, step: Atom) -> bool:
    """True when the index that ends a loop may not be a value of its dtype."""
    low, high = range_of_dtype(step.dtype)
    if not isinstance(step, Literal):
        return True
    by = int(step.value)
    return stop[1] - 1 + by > high if by > 0 else stop[0] + 1 + by < low
