"""Comparisons. All rules are exact; those that NaN would break are for integers and bool only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import compared
from qdtrace.ir.primitives import primitive
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType
from qdtrace.rules.folding import fold_exact
from qdtrace.rules.match import FALSE, TRUE, integer, nested_constants, same, wrapped
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom
    from qdtrace.rules.emitter import Emitter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()
_ALL = "lt le gt ge eq ne"


@TABLE.rule(_ALL, on="bits")
def compare_self(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x < x -> false, x <= x -> true, ... (not floats: NaN)"""
    return (TRUE if op in ("le", "ge", "eq") else FALSE) if same(*ops) else None


@TABLE.rule("lt gt", on="float")
def compare_self_float(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x < x -> false, x > x -> false"""
    return FALSE if same(*ops) else None


@TABLE.rule(_ALL, on="integer")
def compare_range(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x < y -> true or false, where the ranges of x and y decide it"""
    known = compared(op, w.ranges.of(ops[0]), w.ranges.of(ops[1]))
    return None if known is None else TRUE if known else FALSE


@TABLE.rule("eq ne", on="integer", constant=True)
def compare_sign(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """sign(x) != 1 -> x == 0, sign(x) == 1 -> x != 0, where x is not negative"""
    inner = w.defined_by(ops[0], "sign")
    if inner is None or integer(ops[1]) != 1 or w.ranges.of(inner[0])[0] < 0:
        return None
    return w.op(primitive(op).negation, inner[0], wrapped(0, ops[0].dtype))


@TABLE.rule("and", on="bool")
def zero_without_remainder(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x == 0 and x rem y != 0 -> false: what is left of a rounded down quotient where x is not negative"""
    for zero, rest in (ops, ops[::-1]):
        x, left = w.defined_by(zero, "eq"), w.defined_by(rest, "ne")
        if x is None or left is None or not (x[0].dtype.is_integer and left[0].dtype.is_integer):
            continue
        divided = w.defined_by(left[0], "rem")
        if divided is not None and same(divided[0], x[0]) and integer(x[1]) == 0 and integer(left[1]) == 0:
            return FALSE
    return None


@TABLE.rule("eq", on="number")
def equals_extreme(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x == max(x, y) -> x >= y, x == min(x, y) -> x <= y: which operand a slope goes to (NaN is neither)"""
    for x, extreme in (ops, ops[::-1]):
        for name, kept in (("max", "ge"), ("min", "le")):
            one, other = w.defined_by(extreme, name) or (None, None)
            if one is None or other is None:
                continue
            if same(one, x) or same(other, x):
                return w.op(kept, x, other if same(one, x) else one)
    return None


@TABLE.rule("eq ne", on="bool", constant=True)
def compare_with_bool(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """b == true -> b, b == false -> not b, and the other way round for !="""
    c = integer(ops[1])
    if c is None:
        return None
    return ops[0] if (c == 1) == (op == "eq") else w.op("not", ops[0])


@TABLE.rule("eq ne", on="integer", constant=True)
def equal_offset(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x + c == d -> x == d - c, and so for !="""
    if (found := nested_constants(w, "add", ops)) is None:
        return None
    x, c, d = found
    return w.op(op, x, wrapped(d - c, ops[0].dtype))


@TABLE.rule("eq ne", on="integer", constant=True)
def equal_difference(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x - y == 0 -> x == y, -x == 0 -> x == 0, and so for !="""
    if integer(ops[1]) != 0:
        return None
    if (inner := w.defined_by(ops[0], "sub")) is not None:
        return w.op(op, *inner)
    inner = w.defined_by(ops[0], "neg")
    return None if inner is None else w.op(op, inner[0], ops[1])


@TABLE.rule("not", on="bool")
def not_compare(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """not (x < y) -> x >= y, ... (for floats only == and !=: NaN)"""
    eqn = w.definition(ops[0])
    if eqn is None or not (opposite := eqn.primitive.negation):
        return None
    if eqn.invars[0].dtype.is_float and opposite not in ("eq", "ne"):
        return None
    return w.op(opposite, *eqn.invars)


@TABLE.rule(_ALL, constant=True)
def compare_choice(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """select(c, 1, 0) != 0 -> c: a choice between constants, compared with a constant, depends on the choice alone"""
    if ops[1].__class__ is not Literal:
        return None
    if (chosen := w.defined_by(ops[0], "select")) is not None:
        condition, yes, no = chosen
    elif (made := w.defined_by(ops[0], "convert")) is not None and made[0].dtype is DType.bool:
        dtype = ops[0].dtype
        condition, yes, no = made[0], literal(1, dtype), literal(0, dtype)
    else:
        return None
    on_true, on_false = (fold_exact(op, (arm, ops[1]), {}) for arm in (yes, no))
    if on_true is None or on_false is None:
        return None
    return w.op("select", condition, on_true, on_false)
