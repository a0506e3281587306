"""Powers with constant exponents become products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.powers import power
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom
    from qdtrace.rules.emitter import Emitter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()
EXPANDED = 64
"""Largest exponent that is written out: at most 11 products."""
_HALVES = (DType.f16, DType.bf16)


@TABLE.rule("integer_pow", on="number")
def integer_pow_trivial(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x ** 0 -> 1, x ** 1 -> x, x ** -1 -> 1 / x"""
    x, y = ops[0], params["y"]
    if y == 0:
        return literal(1, x.dtype)
    if y == 1:
        return x
    return w.op("div", literal(1, x.dtype), x) if y == -1 else None


@TABLE.rule("integer_pow", on="float")
def integer_pow_even(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(-x) ** 2k -> x ** 2k, |x| ** 2k -> x ** 2k"""
    inner = w.defined_by(ops[0], "neg") or w.defined_by(ops[0], "abs")
    return w.op(op, inner[0], **params) if inner is not None and params["y"] % 2 == 0 else None


@TABLE.rule("integer_pow", on="float", exact=False)
def integer_pow_of_reciprocal(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x ** -y -> (1 / x) ** y, whose division others by x share; it overflows no sooner"""
    x, y = ops[0], -params["y"]
    if not 2 <= y <= EXPANDED or x.dtype in _HALVES:
        return None
    return w.op(op, w.op("div", literal(1, x.dtype), x), y=y)


@TABLE.rule("integer_pow", on="number")
def integer_pow_expand(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x ** y -> the products of the binary method, which is its meaning (f16 and bf16: only squares, as they round)"""
    x, y = ops[0], params["y"]
    if not 2 <= abs(y) <= EXPANDED or (x.dtype in _HALVES and y != 2):
        return None
    result = power(x, abs(y), lambda a, b: w.op("mul", a, b))
    assert result is not None
    return w.op("div", literal(1, x.dtype), result) if y < 0 else result


@TABLE.rule("pow", on="float")
def pow_trivial(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x ** 0.0 -> 1.0, x ** 1.0 -> x, 1.0 ** y -> 1.0"""
    x, y = ops
    if y.__class__ is Literal and y.value == 0:  # type: ignore[union-attr]
        return literal(1, x.dtype)
    if y.__class__ is Literal and y.value == 1:  # type: ignore[union-attr]
        return x
    return x if x.__class__ is Literal and x.value == 1 else None  # type: ignore[union-attr]


@TABLE.rule("pow", on="float", exact=False)
def pow_small(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x ** n -> integer_pow(x, n) for a constant whole n from 2 to 16 (a negative one would overflow sooner)"""
    x, y = ops
    if y.__class__ is not Literal:
        return None
    n = float(y.value)  # type: ignore[union-attr]
    return w.op("integer_pow", x, y=int(n)) if n.is_integer() and 2 <= n <= 16 else None
