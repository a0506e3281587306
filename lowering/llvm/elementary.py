"""The seam to the vector maths library: elementary functions by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.conversions import round_to
from lowering.llvm.types import REGISTER, compute_dtype

if TYPE_CHECKING:
    from lowering.llvm.ops import Ops
    from qdtrace.ir.types import DType


def call(o: Ops, name: str, dtype: DType, values: list[str]) -> str:
    """An elementary function; f16 and bf16 are computed as f32 and rounded."""
    compute = compute_dtype(dtype)
    type_ = o.type(compute)
    try:
        from lowering.llvm.maths.library import function_for
    except ImportError:
        return round_to(o, dtype, o.intrinsic(name, REGISTER[compute], *values))
    function = function_for(name, compute, o.lanes.width, o.target)
    module = o.text.module
    if function.symbol not in module.functions:
        module.functions[function.symbol] = function.text
        for text in function.requires:
            module.declarations.setdefault(text.split("@", 1)[1].split("(", 1)[0], text)
    operands = ", ".join(f"{type_} {v}" for v in values)
    return round_to(o, dtype, o.op(f"call {type_} @{function.symbol}({operands})"))
