"""Calls of the vector maths library: elementary functions by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.conversions import round_to
from lowering.llvm.maths.library import NAMES, function_for
from lowering.llvm.types import compute_dtype

if TYPE_CHECKING:
    from lowering.llvm.ops import Ops
    from qdtrace.ir.types import DType

FUNCTIONS = NAMES
"""Primitives that the library computes; `rem` only for floats."""


def call(o: Ops, name: str, dtype: DType, values: list[str]) -> str:
    """Emits a call of an elementary function; f16 and bf16 are computed as f32 and rounded."""
    compute = compute_dtype(dtype)
    type_ = o.type(compute)
    function = function_for(name, compute, o.lanes.width, o.text.module.form)
    o.text.module.library[function.symbol] = function
    o.text.module.sites[function.symbol] += 1
    operands = ", ".join(f"{type_} {v}" for v in values)
    return round_to(o, dtype, o.op(f"call {type_} @{function.symbol}({operands})"))
