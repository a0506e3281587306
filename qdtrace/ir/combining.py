"""Operations of accumulations: their primitives, also on truth values, and their identities."""

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
"""Operations on truth values: the sum is `or` and the product is `and`, as in NumPy."""


def combining(op: str, dtype: DType) -> Primitive:
    """Returns the primitive that an accumulation applies to the old and the new value."""
    return PRIMITIVES[ON_BOOL.get(op, op) if dtype is DType.bool else op]


def identity(op: str, dtype: DType) -> Literal:
    """Returns the identity of an operation; for a sum of floats it is -0.0, as 0.0 + -0.0 is 0.0."""
    if dtype is DType.bool:
        return literal(ON_BOOL.get(op, op) == "and", dtype)
    if op in ("min", "max"):
        return _extreme(dtype, largest=op == "min")
    return literal({"add": -0.0 if dtype.is_float else 0, "mul": 1, "and": -1}.get(op, 0), dtype)


FROM_ZERO = frozenset({"add"})
"""Operations that begin at 0.0, not at the identity, where elements of an array are joined: as in JAX, the sum of -0.0
and -0.0 is 0.0."""


def start_of(op: str, dtype: DType) -> Literal:
    """Returns the value that the elements of an array are joined to."""
    return literal(0, dtype) if op in FROM_ZERO else identity(op, dtype)


def _extreme(dtype: DType, *, largest: bool) -> Literal:
    if dtype.is_float:
        return literal(math.inf if largest else -math.inf, dtype)
    bits = dtype.bits - dtype.is_signed
    return literal((1 << bits) - 1 if largest else -(1 << bits) if dtype.is_signed else 0, dtype)
