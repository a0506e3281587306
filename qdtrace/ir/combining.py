"""Operations that accumulations combine with: what they are on truth values, and what changes nothing."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Literal

ON_BOOL = {"add": "or", "max": "or", "mul": "and", "min": "and"}
"""Of two truth values the sum is `or` and the product is `and`, as NumPy has them."""


def combining(op: str, dtype: DType) -> Primitive:
    """The primitive that an accumulation applies to the old and the new value."""
    return PRIMITIVES[ON_BOOL.get(op, op) if dtype is DType.bool else op]


def identity(op: str, dtype: DType) -> Literal:
    """What changes no value that it is combined with; for floats that is -0.0 in a sum, as 0.0 + -0.0 is 0.0."""
    if dtype is DType.bool:
        return literal(ON_BOOL.get(op, op) == "and", dtype)
    if op in ("min", "max"):
        return _extreme(dtype, largest=op == "min")
    return literal({"add": -0.0 if dtype.is_float else 0, "mul": 1, "and": -1}.get(op, 0), dtype)


def _extreme(dtype: DType, *, largest: bool) -> Literal:
    if dtype.is_float:
        return literal(math.inf if largest else -math.inf, dtype)
    bits = dtype.bits - dtype.is_signed
    return literal((1 << bits) - 1 if largest else -(1 << bits) if dtype.is_signed else 0, dtype)
