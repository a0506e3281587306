"""Trip counts of loops: as a number, as bounds and as a scalar that the graph computes.

A loop over integers runs for `start, start + step, ...` before `stop`; a step of 0 runs nothing. Counts and distances
are unsigned: between two i32 lie up to 2**32 - 1 steps.

What a loop keeps for its reverse has the size of its trip count: a number where the bounds are constants, else at most
`trips(...)[1]`, else the value of `emit_count` where the bounds are known, in front of the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.progression import Progression
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import WHILE
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.program import Atom, Eqn, Task

    Op = Callable[..., Any]
    """`op(name, *operands, **params)` emits an equation and returns its result."""


def loop_values(start: Atom, stop: Atom, step: Atom | None = None) -> Progression | None:
    """Returns the values of an index if its bounds and step (default 1) are constants, else None."""
    if not (isinstance(start, Literal) and isinstance(stop, Literal)):
        return None
    if step is not None and not isinstance(step, Literal):
        return None
    first, by = int(start.value), 1 if step is None else int(step.value)
    # `len` of a range fails above 2**63
    count = (int(stop.value) - first + by - (1 if by > 0 else -1)) // by if by else 0
    return Progression(first, by, max(0, count))


def task_values(task: Task) -> Progression | None:
    """Returns the values of a task's index if its bounds are constants, else None; a serial task has one iteration."""
    return Progression(0, 1, 1) if task.index is None else loop_values(task.start, task.stop)


def static_bounds(task: Task) -> tuple[int, int] | None:
    """Returns the first index of a task and the end if they are constants, else None."""
    values = task_values(task)
    return None if values is None else (values.start, values.start + values.count)


def trip_count(start: Atom, stop: Atom, step: Atom | None = None) -> int | None:
    """Returns the trip count of a `for` if its bounds and step are constants, else None."""
    values = loop_values(start, stop, step)
    return None if values is None else values.count


def surely_runs(loop: Eqn) -> bool:
    """Returns whether the body of a `for`, or the condition of a `while`, surely runs at least once."""
    return loop.primitive is WHILE or bool(trip_count(*loop.bounds))


def unsigned(dtype: DType) -> DType:
    """Returns the unsigned dtype of trip counts for indices of a dtype."""
    return DType(f"u{dtype.bits}")


@frozen(slots=True)
class CountedLoop:
    """Bounds and step of a loop that counts: of a `for`, or of a `while` that `analysis/index/induction` found."""

    start: Atom
    stop: Atom
    step: Atom

    @classmethod
    def of_for(cls, loop: Eqn) -> CountedLoop:
        """Returns the bounds and step of a `for`."""
        return cls(*loop.bounds)

    @property
    def by(self) -> int | None:
        """The step if it is a constant, else None."""
        return int(self.step.value) if isinstance(self.step, Literal) else None

    def trips(self, start: Interval, stop: Interval) -> Interval:
        """Returns the least and the most iterations for bounds in these intervals."""
        by = self.by
        if by is not None:
            if by == 0:
                return 0, 0
            low, high = (start, stop) if by > 0 else (stop, start)
            near, far = high[0] - low[1], high[1] - low[0]
            return max(0, -(-near // abs(by))), max(0, -(-far // abs(by)))
        return 0, max(stop[1] - start[0], start[1] - stop[0], 0)

    def may_pass_the_end(self, stop: Interval) -> bool:
        """Returns whether the index that ends the loop may overflow its dtype."""
        low, high = range_of_dtype(self.step.dtype)
        if (by := self.by) is None:
            return True
        return stop[1] - 1 + by > high if by > 0 else stop[0] + 1 + by < low

    def emit_before(self, op: Op, at: Atom, **params: Any) -> Atom:
        """Emits whether an index lies before the end of a loop whose step is a constant, and returns it."""
        by = self.by
        assert by is not None
        return op("lt" if by > 0 else "gt", at, self.stop, **params) if by else literal(False, DType.bool)

    def emit_count(self, op: Op) -> Atom:
        """Emits the trip count and returns it as a value of the unsigned dtype."""
        start, stop, step = self.start, self.stop, self.step
        dtype = start.dtype
        wide = unsigned(dtype)
        known = 0 if self.by == 0 else trip_count(start, stop, step)
        if known is not None:
            return literal(known, wide)
        zero, nothing, one = literal(0, dtype), literal(0, wide), literal(1, wide)

        def side(low: Atom, high: Atom, size: Atom) -> Atom:
            """Returns the iterations of a loop from `low` up to `high` in steps of `size`."""
            runs, distance = op("lt", low, high), op("sub", high, low)
            if isinstance(size, Literal) and size.value == 1:
                return op("convert", op("select", runs, distance, zero), dtype=wide)
            distance = op("convert", distance, dtype=wide)
            count = op("add", op("div", op("sub", distance, one), size), one)
            return op("select", runs, count, nothing)

        if (by := self.by) is not None:
            size = literal(abs(by), wide)
            return side(start, stop, size) if by > 0 else side(stop, start, size)
        up = side(start, stop, op("convert", step, dtype=wide))
        down = side(stop, start, op("convert", op("neg", step), dtype=wide))
        count = op("select", op("gt", step, zero), up, down)
        return op("select", op("ne", step, zero), count, nothing)
