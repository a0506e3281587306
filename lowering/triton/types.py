"""Triton's spelling of dtypes and constants.

Values live in variables as in `lowering.llvm`: f16 and bf16 as f32 that are exact in the small type. In memory a bool
is a byte.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from lowering.llvm.types import compute_dtype
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.ir.program import Literal

_FAMILIES = {"i": "int", "u": "uint", "f": "float", "b": "bfloat"}
NAME = {d: "int1" if d is DType.bool else f"{_FAMILIES[d.value[0]]}{d.bits}" for d in DType}
"""Triton's name of each dtype, as in `tl.float32`."""
POINTER = {
    d: "*i8" if d is DType.bool else f"*fp{d.bits}" if d.is_float and d is not DType.bf16 else f"*{d.value}"
    for d in DType
}
"""Type of a pointer to elements of each dtype, in signatures of kernels."""
_PLAIN = frozenset({DType.bool, DType.i32, DType.f32, DType.f16, DType.bf16})
"""Dtypes whose small constants can be plain Python numbers, as Triton gives those the right type."""
_SMALLEST_NORMAL = 2.0**-126


def type_of(dtype: DType) -> str:
    """Returns the Triton dtype of variables with a dtype."""
    return f"tl.{NAME[compute_dtype(dtype)]}"


def number(value: Literal) -> str:
    """Returns a constant as a Python number, for an operator whose other operand has the dtype."""
    dtype = value.dtype
    if dtype is DType.bool:
        return str(bool(value.value))
    if not dtype.is_float:
        return str(int(value.value))
    exact = float(value.value)
    if not math.isfinite(exact):
        return f'float("{exact}")'
    short = float(str(value.value))
    same = compute_dtype(dtype).numpy.type(short) == exact
    return repr(short if same else exact)


def constant(value: Literal) -> str:
    """Returns a constant as an operand that has its dtype in any context."""
    text, dtype = number(value), value.dtype
    if dtype.is_float and value.value == 0 and np.signbit(value.value):
        return f"(tl.full((), 0.0, {type_of(dtype)}) * -1.0)"  # a constant -0.0 lost its sign in some releases
    size = abs(float(value.value)) if dtype.is_float else 0.0
    if dtype in _PLAIN and not 0 < size < _SMALLEST_NORMAL:
        return text
    return f"tl.full((), {text}, {type_of(dtype)})"
