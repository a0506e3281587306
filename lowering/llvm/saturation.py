"""Conversion of floats to integers, which saturates: towards zero, to the nearest integer of the dtype; NaN becomes 0.

LLVM's `fptosi.sat` of a vector is one conversion an element on x86, each with two comparisons. There the limits are
compared as vectors, around a conversion of the vector. Lanes whose conversion is poison take another value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER, compute_dtype
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.ops import Ops

MANTISSA = {DType.f32: 24, DType.f64: 53}
"""Bits of the integers that a float holds exactly."""


def to_integer(o: Ops, source: DType, value: str, target: DType) -> str:
    """Emits the conversion of a float to an integer of another dtype."""
    opcode = "fptosi" if target.is_signed else "fptoui"
    if o.lanes.width == 1 or not o.target.triple.startswith("x86_64"):
        return o.saturating(opcode, REGISTER[source], value, REGISTER[target])
    d = compute_dtype(source)
    low, high = range_of_dtype(target)
    kept = _clamped(o, d, "ogt", value, low)  # a NaN becomes the lowest
    exact = target.bits <= MANTISSA[d]
    if exact:
        kept = _clamped(o, d, "olt", kept, high)
    result = o.cast(opcode, REGISTER[d], kept, REGISTER[target])
    if not exact:
        above = o.compare("fcmp oge", o.type(d), value, o.constant(high + 1, d))
        result = o.select(above, o.type(target), o.constant(high, target), result)
    if target.is_signed:
        number = o.compare("fcmp ord", o.type(d), value, value)
        result = o.select(number, o.type(target), result, o.constant(0, target))
    return result


def _clamped(o: Ops, d: DType, predicate: str, value: str, limit: int) -> str:
    """Emits the value where it compares so to a limit, else the limit: one instruction of x86."""
    bound = o.constant(limit, d)
    return o.select(o.compare(f"fcmp {predicate}", o.type(d), value, bound), o.type(d), value, bound)
