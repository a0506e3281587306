"""Algebra of bits: `and`, `or`, `xor`, `not` on bool and integers, and shifts. All rules are exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.types import DType
from qdtrace.rules.match import integer, nested_constants, same, wrapped
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom
    from qdtrace.rules.emitter import Emitter
    from qdtrace.rules.table import Operands, Params

TABLE = RuleTable()


@TABLE.rule("and or", on="bits")
def and_or_self(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x & x -> x, x | x -> x"""
    return ops[0] if same(*ops) else None


@TABLE.rule("and or xor", on="bits", constant=True)
def bits_with_zero(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x & 0 -> 0, x | 0 -> x, x ^ 0 -> x"""
    if integer(ops[1]) != 0:
        return None
    return ops[1] if op == "and" else ops[0]


@TABLE.rule("and or xor", on="bits", constant=True)
def bits_with_ones(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x & ones -> x, x | ones -> ones, x ^ ones -> ~x"""
    if integer(ops[1]) != int(wrapped(-1, ops[1].dtype).value):
        return None
    if op == "xor":
        return w.op("not", ops[0])
    return ops[0] if op == "and" else ops[1]


@TABLE.rule("xor", on="bits")
def xor_self(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x ^ x -> 0"""
    return wrapped(0, ops[0].dtype) if same(*ops) else None


@TABLE.rule("and or xor", on="bits")
def bits_with_complement(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x & ~x -> 0, x | ~x -> ones, x ^ ~x -> ones"""
    for a, b in (ops, ops[::-1]):
        inner = w.defined_by(b, "not")
        if inner is not None and same(inner[0], a):
            return wrapped(0 if op == "and" else -1, a.dtype)
    return None


@TABLE.rule("and or xor", on="bits", constant=True)
def bits_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x & c) & d -> x & (c & d), and so for | and ^"""
    if (found := nested_constants(w, op, ops)) is None:
        return None
    x, c, d = found
    return w.op(op, x, wrapped(c & d if op == "and" else c | d if op == "or" else c ^ d, ops[0].dtype))


@TABLE.rule("and or", on="bits")
def bits_absorb(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x & (x | y) -> x, x | (x & y) -> x, x & (x & y) -> x & y, x | (x | y) -> x | y"""
    other = "or" if op == "and" else "and"
    for a, b in (ops, ops[::-1]):
        if (inner := w.defined_by(b, other)) is not None and (same(inner[0], a) or same(inner[1], a)):
            return a
        if (inner := w.defined_by(b, op)) is not None and (same(inner[0], a) or same(inner[1], a)):
            return b
    return None


@TABLE.rule("not", on="bits")
def not_not(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """~~x -> x"""
    inner = w.defined_by(ops[0], "not")
    return None if inner is None else inner[0]


@TABLE.rule("shift_left shift_right_logical shift_right_arithmetic", on="integer", constant=True)
def shift_zero(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x << 0 -> x, 0 << n -> 0, and so for the other shifts"""
    return ops[0] if integer(ops[1]) == 0 or integer(ops[0]) == 0 else None


@TABLE.rule("shift_left shift_right_logical", on="integer", constant=True)
def shift_out(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """x << n -> 0 for a constant n of the width or more (the amount is read as unsigned)"""
    n = _amount(ops[1])
    return wrapped(0, ops[0].dtype) if n is not None and n >= ops[0].dtype.bits else None


@TABLE.rule("shift_left shift_right_logical shift_right_arithmetic", on="integer", constant=True)
def shift_constants(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """(x << c) << d -> x << (c + d), and so for the other shifts (an arithmetic one stops at the sign)"""
    d = _amount(ops[1])
    inner = w.defined_by(ops[0], op)
    if d is None or inner is None or (c := _amount(inner[1])) is None:
        return None
    bits = ops[0].dtype.bits
    total = min(c, bits) + min(d, bits)
    if op == "shift_right_arithmetic":
        total = min(total, bits - 1)
    elif total >= bits:
        return wrapped(0, ops[0].dtype)
    return w.op(op, inner[0], wrapped(total, ops[0].dtype))


def _amount(atom: Atom) -> int | None:
    n = integer(atom)
    return None if n is None else n & ((1 << atom.dtype.bits) - 1)


@TABLE.rule("min max", on="any")
def min_max_self(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """min(x, x) -> x, max(x, x) -> x (NaN gives NaN)"""
    return ops[0] if same(*ops) else None


@TABLE.rule("population_count clz", on="integer")
def count_of_bool(w: Emitter, op: str, ops: Operands, params: Params) -> Atom | None:
    """population_count(convert(b)) -> convert(b) for a bool b"""
    inner = w.defined_by(ops[0], "convert")
    return ops[0] if op == "population_count" and inner is not None and inner[0].dtype is DType.bool else None
