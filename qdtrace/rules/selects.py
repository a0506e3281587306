"""`select`. All rules are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import GE, GT, LE, LT
from qdtrace.ir.program import Literal
from qdtrace.rules.match import FALSE, TRUE, integer, same
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom
    from qdtrace.rules.emitter import Emitter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()


@TABLE.rule("select", constant=True)
def select_constant(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(true, x, y) -> x, select(false, x, y) -> y"""
    c, x, y = ops
    return (x if c.value else y) if c.__class__ is Literal else None  # type: ignore[union-attr]


@TABLE.rule("select")
def select_same(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(c, x, x) -> x"""
    return ops[1] if same(ops[1], ops[2]) else None


@TABLE.rule("select")
def select_not(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(not c, x, y) -> select(c, y, x)"""
    inner = w.defined_by(ops[0], "not")
    return None if inner is None else w.op("select", inner[0], ops[2], ops[1])


@TABLE.rule("select", on="integer")
def select_of_equals(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(x == y, x, y) -> y, select(x != y, x, y) -> x, for integers"""
    for name, chosen in (("eq", ops[2]), ("ne", ops[1])):
        pair = w.defined_by(ops[0], name)
        if pair is not None and any(same(pair[k], ops[1]) and same(pair[1 - k], ops[2]) for k in (0, 1)):
            return chosen
    return None


@TABLE.rule("select", on="bool")
def select_of_condition(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(c, c, y) -> select(c, true, y), select(c, x, c) -> select(c, x, false)"""
    c, x, y = ops
    if c is x:
        return w.op("select", c, TRUE, y)
    return w.op("select", c, x, FALSE) if c is y else None


@TABLE.rule("select", on="bool")
def select_bool(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(c, true, y) -> c or y, select(c, x, false) -> c and x, select(c, false, y) -> not c and y, ..."""
    c, x, y = ops
    if (arm := integer(x)) is not None:
        return w.op("or", c, y) if arm else w.op("and", w.op("not", c), y)
    if (arm := integer(y)) is not None:
        return w.op("or", w.op("not", c), x) if arm else w.op("and", c, x)
    return None


@TABLE.rule("select")
def select_select(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(c, select(c, x, y), z) -> select(c, x, z), select(c, x, select(c, y, z)) -> select(c, x, z)"""
    c, x, y = ops
    if (inner := w.defined_by(x, "select")) is not None and inner[0] is c:
        return w.op("select", c, inner[1], y)
    if (inner := w.defined_by(y, "select")) is not None and inner[0] is c:
        return w.op("select", c, x, inner[2])
    return None


@TABLE.rule("select", on="integer")
def select_extreme(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(x < y, x, y) -> min(x, y), select(x > y, x, y) -> max(x, y), ... (integers: floats have NaN and -0.0)"""
    c, x, y = ops
    eqn = w.definition(c)
    if eqn is None or eqn.primitive not in (LT, LE, GT, GE):
        return None
    less = eqn.primitive in (LT, LE)
    a, b = eqn.invars
    if same(a, x) and same(b, y):
        return w.op("min" if less else "max", x, y)
    if same(a, y) and same(b, x):
        return w.op("max" if less else "min", x, y)
    return None
