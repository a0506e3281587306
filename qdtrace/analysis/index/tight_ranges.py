"""Ranges of integers for memory that is reserved: a bound that holds of all numbers of a dtype counts as none.

The limits of arrays bound what is loaded from them. Checks do not, as derivatives leave out those of the primal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.flow_ranges import FlowRanges
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.ir.primitives import BOUND, CONVERT, LOAD
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.program import Atom, Eqn, Task, Var
    from qdtrace.limits import Limits

FAR = 1 << 20
"""Ends of ranges at this distance from 0 count as unknown (half of any `i32` has one); those of constants do not."""


class TightRanges(FlowRanges):
    """Ranges in which the largest number of a dtype becomes the largest of the dtype that it is converted to."""

    def __init__(self, task: Task, limits: Mapping[Var, Limits]) -> None:
        self.limits = limits
        """Limits of references that the task loads from."""
        super().__init__(task)

    def bound_of(self, atom: Atom) -> Interval:
        """Returns the range of a loop bound, open towards an end that is at least `FAR` from 0."""
        low, high = _widened(self.of(atom), atom.dtype, DType.i64)
        if isinstance(atom, Literal):
            return low, high
        whole = range_of_dtype(DType.i64)
        return whole[0] if low <= -FAR else low, whole[1] if high >= FAR else high

    def _special(self, eqn: Eqn, atom: Atom, depth: int) -> Interval | None:
        prim = eqn.primitive
        if prim is BOUND:
            return self.of(eqn.invars[0], depth - 1)
        if prim is LOAD and (known := self.limits.get(eqn.invars[0])) is not None:  # type: ignore[call-overload]
            return known.low, known.high
        if prim is CONVERT and eqn.invars[0].dtype.is_integer and depth > 0:
            source, whole = eqn.invars[0], range_of_dtype(atom.dtype)
            wide = _widened(self.of(source, depth - 1), source.dtype, atom.dtype)
            return wide if whole[0] <= wide[0] and wide[1] <= whole[1] else whole
        return super()._special(eqn, atom, depth)


def _widened(found: Interval, dtype: DType, wide: DType) -> Interval:
    """Returns a range in the dtype `wide`; an end that is merely that of `dtype` becomes that of `wide`."""
    if not dtype.is_integer:
        return found
    (low, high), (least, most), whole = found, range_of_dtype(dtype), range_of_dtype(wide)
    return whole[0] if low == least < 0 else low, whole[1] if high == most else high
