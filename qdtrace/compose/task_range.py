"""The range of a task's index. Tasks have a step of 1, and their iterations no order.

`start : stop` is taken as it is, `start : stop : -1` from its lower end up. Iterations with other steps are counted
from 0 or, if there may be more than the signed dtype counts, from its least value, so that up to 2**32 - 1 have a
number.

The launcher adds lanes and chunks to 64-bit indices, so those must stay away from the ends of their dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.trips import CountedLoop
from qdtrace.errors import TraceValueError
from qdtrace.frozen import frozen
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.analysis.index.ranges import Ranges
    from qdtrace.errors import Loc
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom

LAST = (1 << 63) - (1 << 32)
"""The largest end of a 64-bit range."""
_RULE = "a loop over 64-bit integers needs to end at 2**63 - 2**32 or before, and to have fewer than 2**63 iterations"


@frozen
class TaskRange:
    """A task's bounds, and the map from its index to the user's: `base + index * step`."""

    first: Atom
    last: Atom
    base: Atom | None
    step: Atom | None

    def index(self, builder: Builder, number: Atom) -> Atom:
        """Emits the user's index in the body and returns it."""
        scaled = number if self.step is None else builder("mul", number, self.step)
        return scaled if self.base is None else builder("add", self.base, scaled)


def task_range(builder: Builder, ranges: Ranges, start: Atom, stop: Atom, step: Atom, loc: Loc | None) -> TaskRange:
    """Returns the range of a task for a loop over `start : stop : step`; emits its equations into the open block.

    Raises:
        TraceValueError: constant bounds are too near to the end of i64. Others are checked when the task is launched.
    """
    dtype = start.dtype
    low, high = range_of_dtype(dtype)
    by = int(step.value) if isinstance(step, Literal) else None
    if by == 1:
        made = TaskRange(start, stop, None, None)
    elif by == -1:
        made = TaskRange(stop, start, literal(1, dtype), None)
    else:
        loop = CountedLoop(start, stop, step)
        count = loop.emit_count(builder)
        if loop.trips(ranges.of(start), ranges.of(stop))[1] <= high:
            last = literal(int(count.value), dtype) if isinstance(count, Literal) else builder.convert(count, dtype)
            made = TaskRange(literal(0, dtype), last, start, step)
        else:
            least = literal(low, dtype)
            last = builder("add", builder.convert(count, dtype), least)
            base = builder("sub", start, builder("mul", least, step))
            made = TaskRange(least, last, base, step)
    if dtype is DType.i64:
        _check_ends(builder, made.first, made.last, loc)
    return made


def _check_ends(builder: Builder, first: Atom, last: Atom, loc: Loc | None) -> None:
    top = range_of_dtype(DType.i64)[1]
    if isinstance(first, Literal) and isinstance(last, Literal):
        a, b = int(first.value), int(last.value)
        if a < b and (b > LAST or b - a > top):
            raise TraceValueError(f"{_RULE}, got {a} to {b}", loc=loc, help="shift the range, or use fewer iterations")
        return
    ends = builder("le", last, literal(LAST, DType.i64))
    near = builder("le", last, builder("add", builder("min", first, literal(0, DType.i64)), literal(top, DType.i64)))
    fine = builder("or", builder("ge", first, last), builder("and", ends, near))
    builder.emit("check", fine, message=_RULE)
