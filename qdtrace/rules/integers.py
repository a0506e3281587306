"""Algebra of integers. They wrap, so every law of a ring with unity holds; all rules are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import NEG, primitive
from qdtrace.ir.program import Literal
from qdtrace.rules.match import bounds_of, integer, nested_constants, power_of_two, same, wrapped
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom
    from qdtrace.rules.emitter import Emitter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()


@TABLE.rule("add mul min max eq ne and or xor lt le gt ge", constant=True)
def constant_right(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """c + x -> x + c, c < x -> x > c, ...: other rules look for constants in one place (any kind)"""
    if ops[0].__class__ is Literal and ops[1].__class__ is not Literal:
        return w.op(primitive(op).mirror or op, ops[1], ops[0])
    return None


@TABLE.rule("add sub", on="integer", constant=True)
def add_zero(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x + 0 -> x, x - 0 -> x"""
    return ops[0] if integer(ops[1]) == 0 else None


@TABLE.rule("sub", on="integer")
def sub_self(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x - x -> 0"""
    return wrapped(0, ops[0].dtype) if same(*ops) else None


@TABLE.rule("sub", on="integer", constant=True)
def sub_constant(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x - c -> x + (-c): one form for offsets"""
    c = integer(ops[1])
    return None if c is None else w.op("add", ops[0], wrapped(-c, ops[0].dtype))


@TABLE.rule("sub", on="integer", constant=True)
def zero_sub(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """0 - x -> -x"""
    return w.op("neg", ops[1]) if integer(ops[0]) == 0 else None


@TABLE.rule("add", on="integer", constant=True)
def add_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x + c) + d -> x + (c + d), (c - x) + d -> (c + d) - x"""
    d = integer(ops[1])
    if d is None:
        return None
    if (inner := w.defined_by(ops[0], "add")) is not None and (c := integer(inner[1])) is not None:
        return w.op("add", inner[0], wrapped(c + d, ops[0].dtype))
    if (inner := w.defined_by(ops[0], "sub")) is not None and (c := integer(inner[0])) is not None:
        return w.op("sub", wrapped(c + d, ops[0].dtype), inner[1])
    return None


@TABLE.rule("sub", on="integer", constant=True)
def sub_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """d - (x + c) -> (d - c) - x, d - (c - x) -> x + (d - c)"""
    d = integer(ops[0])
    if d is None:
        return None
    if (inner := w.defined_by(ops[1], "add")) is not None and (c := integer(inner[1])) is not None:
        return w.op("sub", wrapped(d - c, ops[0].dtype), inner[0])
    if (inner := w.defined_by(ops[1], "sub")) is not None and (c := integer(inner[0])) is not None:
        return w.op("add", inner[1], wrapped(d - c, ops[0].dtype))
    return None


@TABLE.rule("add", on="number")
def add_neg(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x + (-y) -> x - y, (-x) + y -> y - x (floats too)"""
    x, y = ops
    of_y, of_x = w.definition(y), w.definition(x)
    if of_y is not None and of_y.primitive is NEG:
        return w.op("sub", x, of_y.invars[0])
    if of_x is not None and of_x.primitive is NEG:
        return w.op("sub", y, of_x.invars[0])
    return None


@TABLE.rule("sub", on="number")
def sub_neg(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x - (-y) -> x + y (floats too)"""
    inner = w.defined_by(ops[1], "neg")
    return None if inner is None else w.op("add", ops[0], inner[0])


@TABLE.rule("add", on="integer")
def add_sub_cancel(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x - y) + y -> x, y + (x - y) -> x"""
    for a, b in (ops, ops[::-1]):
        inner = w.defined_by(a, "sub")
        if inner is not None and same(inner[1], b):
            return inner[0]
    return None


@TABLE.rule("sub", on="integer")
def sub_add_cancel(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x + y) - y -> x, (x + y) - x -> y, x - (x - y) -> y, x - (x + y) -> -y, (x - y) - x -> -y"""
    a, b = ops
    if (inner := w.defined_by(a, "add")) is not None:
        x, y = inner
        if same(y, b):
            return x
        if same(x, b):
            return y
    if (inner := w.defined_by(b, "sub")) is not None and same(inner[0], a):
        return inner[1]
    if (inner := w.defined_by(b, "add")) is not None:
        x, y = inner
        if same(x, a):
            return w.op("neg", y)
        if same(y, a):
            return w.op("neg", x)
    if (inner := w.defined_by(a, "sub")) is not None and same(inner[0], b):
        return w.op("neg", inner[1])
    return None


@TABLE.rule("neg", on="integer")
def neg_sub(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """-(x - y) -> y - x"""
    inner = w.defined_by(ops[0], "sub")
    return None if inner is None else w.op("sub", inner[1], inner[0])


@TABLE.rule("mul", on="integer", constant=True)
def mul_by_constant(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x * 0 -> 0, x * 1 -> x, x * -1 -> -x"""
    c = integer(ops[1])
    if c == 0:
        return ops[1]
    if c == 1:
        return ops[0]
    if c is not None and c == int(wrapped(-1, ops[1].dtype).value):
        return w.op("neg", ops[0])
    return None


@TABLE.rule("mul", on="integer", constant=True)
def mul_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x * c) * d -> x * (c * d), (-x) * d -> x * (-d)"""
    d = integer(ops[1])
    if d is None:
        return None
    if (inner := w.defined_by(ops[0], "mul")) is not None and (c := integer(inner[1])) is not None:
        return w.op("mul", inner[0], wrapped(c * d, ops[0].dtype))
    if (inner := w.defined_by(ops[0], "neg")) is not None:
        return w.op("mul", inner[0], wrapped(-d, ops[0].dtype))
    return None


@TABLE.rule("div", on="integer", constant=True)
def div_by_constant(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x / 1 -> x, x / -1 -> -x (signed)"""
    c = integer(ops[1])
    if c == 1:
        return ops[0]
    return w.op("neg", ops[0]) if c == -1 else None


@TABLE.rule("div", on="unsigned", constant=True)
def div_by_power_of_two(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x / 2**k -> x >> k (unsigned)"""
    k = power_of_two(ops[1])
    return None if k is None else w.op("shift_right_logical", ops[0], wrapped(k, ops[0].dtype))


@TABLE.rule("div", on="integer", constant=True)
def div_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x / c) / d -> x / (c * d) for positive c, d whose product is in range: truncation nests"""
    found = nested_constants(w, "div", ops)
    if found is None or found[1] <= 0 or found[2] <= 0:
        return None
    x, c, d = found
    product = wrapped(c * d, ops[0].dtype)
    return w.op("div", x, product) if int(product.value) == c * d else None


@TABLE.rule("rem", on="integer", constant=True)
def rem_by_constant(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x rem 1 -> 0, x rem -1 -> 0 (signed), 0 rem x -> 0"""
    if integer(ops[1]) in (1, -1) or integer(ops[0]) == 0:
        return wrapped(0, ops[0].dtype)
    return None


@TABLE.rule("rem", on="unsigned", constant=True)
def rem_by_power_of_two(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x rem 2**k -> x & (2**k - 1) (unsigned)"""
    if power_of_two(ops[1]) is None:
        return None
    return w.op("and", ops[0], wrapped(integer(ops[1]) - 1, ops[0].dtype))  # type: ignore[operator]


@TABLE.rule("abs", on="unsigned")
def abs_unsigned(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """|x| -> x (unsigned)"""
    return ops[0]


@TABLE.rule("min max", on="integer", constant=True)
def min_max_extreme(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """min(x, smallest) -> smallest, min(x, largest) -> x, and so for max"""
    c = integer(ops[1])
    if c is None:
        return None
    low, high = bounds_of(ops[1].dtype)
    if c == (high if op == "min" else low):
        return ops[0]
    return ops[1] if c == (low if op == "min" else high) else None


@TABLE.rule("min max", on="integer", constant=True)
def min_max_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """min(min(x, c), d) -> min(x, min(c, d)), and so for max"""
    if (found := nested_constants(w, op, ops)) is None:
        return None
    x, c, d = found
    return w.op(op, x, wrapped(min(c, d) if op == "min" else max(c, d), ops[0].dtype))
