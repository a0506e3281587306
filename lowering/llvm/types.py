"""LLVM types and constants of graph dtypes.

Two types per dtype: in registers (bool is `i1`; f16 and bf16 are `float`, exact in the small type) and in memory
(bool is a byte; f16 and bf16 are their 16 bits).
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.ir.types import RefType

_INTEGERS = {d: f"i{d.bits}" for d in DType if d.is_integer}
REGISTER: dict[DType, str] = {
    **_INTEGERS, DType.bool: "i1", DType.f16: "float", DType.bf16: "float", DType.f32: "float", DType.f64: "double",
}  # fmt: skip
MEMORY: dict[DType, str] = {**REGISTER, DType.bool: "i8", DType.f16: "i16", DType.bf16: "i16"}
PRIVATE: dict[DType, str] = {**REGISTER, DType.bool: "i8"}
"""Types in private memory of a lane, which keeps f16 and bf16 as registers do."""
SUFFIX = {"float": "f32", "double": "f64", "ptr": "p0"}
BYTES = {"i8": 1, "i16": 2, "i32": 4, "i64": 8, "float": 4, "double": 8, "i1": 1}
REGISTER_BITS = {d: compute.bits for d in DType for compute in [DType.f32 if d in (DType.f16, DType.bf16) else d]}
SMALL_FLOATS = frozenset({DType.f16, DType.bf16})


def kept_bytes(ref: RefType) -> int:
    """Returns the bytes of an array in private memory, of one lane."""
    return max(1, ref.size) * BYTES[PRIVATE[ref.dtype]]


def compute_dtype(dtype: DType) -> DType:
    """Returns the dtype of arithmetic on a dtype: f32 for f16 and bf16."""
    return DType.f32 if dtype in SMALL_FLOATS else dtype


def constant(value: object, dtype: DType) -> str:
    """Returns a scalar constant in its register type."""
    if dtype is DType.bool:
        return "true" if value else "false"
    if not dtype.is_float:
        return str(int(value))  # type: ignore[call-overload]
    with np.errstate(over="ignore"):
        number = float(np.asarray(value).astype(compute_dtype(dtype).numpy))
    if math.isnan(number):
        return "0x7FF8000000000000"
    return f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
