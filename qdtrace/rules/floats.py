"""Algebra of floats. Exact rules hold for every operand bit for bit (a NaN may become another NaN).

The others change a rounding, and so are used with `fast_math` only. They keep infinities, NaN and the signs of zeros:
constants are combined only where the result is a normal number and no step can overflow sooner or later than before.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.primitives import CONVERT
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType
from qdtrace.rules.match import same
from qdtrace.rules.table import RuleTable
from qdtrace.rules.zeros import is_never_negative_zero

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn
    from qdtrace.rules.emitter import Emitter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()
_LEAST_NORMAL = {
    DType.f16: 2.0**-14, DType.bf16: 2.0**-126, DType.f32: 2.0**-126, DType.f64: 2.0**-1022
}  # fmt: skip
_LARGEST = {
    DType.f16: 65504.0, DType.bf16: 3.3895313892515355e38, DType.f32: float(np.finfo(np.float32).max),
    DType.f64: float(np.finfo(np.float64).max),
}  # fmt: skip


def _number(atom: Atom) -> float | None:
    return float(atom.value) if atom.__class__ is Literal else None  # type: ignore[union-attr]


def _is(atom: Atom, value: float) -> bool:
    x = _number(atom)
    return x is not None and x == value and math.copysign(1.0, x) == math.copysign(1.0, value)


def _is_normal(value: float, dtype: DType) -> bool:
    return _LEAST_NORMAL[dtype] <= abs(value) <= _LARGEST[dtype]


@TABLE.rule("add", on="float", constant=True)
def float_add_negative_zero(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x + (-0.0) -> x"""
    return ops[0] if _is(ops[1], -0.0) else None


@TABLE.rule("sub", on="float", constant=True)
def float_sub_zero(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x - 0.0 -> x"""
    return ops[0] if _is(ops[1], 0.0) else None


@TABLE.rule("sub", on="float", constant=True)
def float_negative_zero_sub(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """-0.0 - x -> -x"""
    return w.op("neg", ops[1]) if _is(ops[0], -0.0) else None


@TABLE.rule("add sub", on="float", constant=True)
def float_add_zero(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x + 0.0 -> x, x - (-0.0) -> x, where x is surely not -0.0"""
    zero = 0.0 if op == "add" else -0.0
    return ops[0] if _is(ops[1], zero) and is_never_negative_zero(w, ops[0]) else None


@TABLE.rule("mul div", on="float", constant=True)
def float_mul_div_one(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x * 1.0 -> x, x / 1.0 -> x, x * -1.0 -> -x, x / -1.0 -> -x"""
    if _is(ops[1], 1.0):
        return ops[0]
    return w.op("neg", ops[0]) if _is(ops[1], -1.0) else None


@TABLE.rule("neg", on="number")
def neg_neg(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """-(-x) -> x (integers too)"""
    inner = w.defined_by(ops[0], "neg")
    return None if inner is None else inner[0]


@TABLE.rule("mul div", on="float")
def float_product_of_negs(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(-x) * (-y) -> x * y, (-x) * c -> x * (-c), and so for /"""
    x = w.defined_by(ops[0], "neg")
    if x is None:
        return None
    c = _number(ops[1])
    if c is not None:
        return w.op(op, x[0], literal(-c, ops[1].dtype))
    y = w.defined_by(ops[1], "neg")
    return None if y is None else w.op(op, x[0], y[0])


@TABLE.rule("mul", on="number")
def square_of_abs(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """|x| * |x| -> x * x, (-x) * (-x) -> x * x (integers too)"""
    if not same(*ops):
        return None
    inner = w.defined_by(ops[0], "abs") or w.defined_by(ops[0], "neg")
    return None if inner is None else w.op("mul", inner[0], inner[0])


@TABLE.rule("abs", on="number")
def abs_of_abs(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """||x|| -> |x|, |-x| -> |x| (integers too)"""
    if w.defined_by(ops[0], "abs") is not None:
        return ops[0]
    inner = w.defined_by(ops[0], "neg")
    return None if inner is None else w.op("abs", inner[0])


@TABLE.rule("cos cosh", on="float")
def even_function(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """cos(-x) -> cos(x), cos(|x|) -> cos(x), and so for cosh"""
    inner = w.defined_by(ops[0], "neg") or w.defined_by(ops[0], "abs")
    return None if inner is None else w.op(op, inner[0])


@TABLE.rule("floor ceil trunc round_even round_away", on="float")
def round_of_whole(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """floor(ceil(x)) -> ceil(x), and so for every pair of roundings to whole numbers"""
    eqn = w.definition(ops[0])
    whole = eqn is not None and eqn.primitive.gives_whole
    return ops[0] if whole else None


@TABLE.rule("div", on="float", constant=True)
def float_div_by_power_of_two(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x / 2**k -> x * 2**-k, where both are normal numbers"""
    inverse = _exact_inverse(ops[1])
    return None if inverse is None else w.op("mul", ops[0], inverse)


@TABLE.rule("div", on="float")
def float_div_by_powers_of_two(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x / select(c, 2**k, 2**m) -> x * select(c, 2**-k, 2**-m): shares of the slope of a maximum"""
    chosen = w.defined_by(ops[1], "select")
    if chosen is None:
        return None
    a, b = map(_exact_inverse, chosen[1:])
    return None if a is None or b is None else w.op("mul", ops[0], w.op("select", chosen[0], a, b))


def _exact_inverse(atom: Atom) -> Literal | None:
    """Returns the inverse of a constant that is a power of two, where both are normal numbers."""
    c = _number(atom)
    if not c or math.isinf(c) or abs(math.frexp(c)[0]) != 0.5:
        return None
    dtype = atom.dtype
    return literal(1 / c, dtype) if _is_normal(c, dtype) and _is_normal(1 / c, dtype) else None


def is_whole(eqn: Eqn | None) -> bool:
    """Returns whether an equation converts an integer to a float. Quotients of those are compared (times with the knots
    of a table), so they get no second rounding."""
    return eqn is not None and eqn.primitive is CONVERT and eqn.invars[0].dtype.is_integer


@TABLE.rule("div", on="float", exact=False, constant=True)
def float_div_by_constant(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x / c -> x * (1 / c), where both are normal numbers and x is no integer"""
    c = _number(ops[1])
    dtype = ops[1].dtype
    if c is None or is_whole(w.definition(ops[0])) or not _is_normal(c, dtype) or not _is_normal(1 / c, dtype):
        return None
    return w.op("mul", ops[0], literal(1 / c, dtype))


@TABLE.rule("mul", on="float", exact=False, constant=True)
def float_mul_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x * c) * d -> x * (c * d), where c and d are both at least 1, or both at most 1 (so overflow is the same)"""
    d = _number(ops[1])
    inner = w.defined_by(ops[0], "mul")
    if d is None or inner is None or (c := _number(inner[1])) is None:
        return None
    if (abs(c) < 1) != (abs(d) < 1) or not _is_normal(c * d, ops[0].dtype):
        return None
    return w.op("mul", inner[0], literal(c * d, ops[0].dtype))


@TABLE.rule("add sub", on="float", exact=False, constant=True)
def float_add_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x + c) + d -> x + (c + d), where c and d have one sign (so overflow is the same), and so for -"""
    d = _number(ops[1])
    if d is None:
        return None
    d = d if op == "add" else -d
    for name, sign in (("add", 1.0), ("sub", -1.0)):
        inner = w.defined_by(ops[0], name)
        if inner is None or (c := _number(inner[1])) is None:
            continue
        total = sign * c + d
        if sign * c * d > 0 and _is_normal(total, ops[0].dtype):
            return w.op("add", inner[0], literal(total, ops[0].dtype))
    return None
