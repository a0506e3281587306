"""Division, remainder and shifts of integers with every case defined."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom
    from qdtrace.ir.types import DType


def divide(o: Ops, d: DType, a: str, b: str, divisor: Atom, *, remainder: bool) -> str:
    """Returns the truncated quotient or remainder.

    Division by zero yields -1 (all bits set), or the dividend; the smallest number by -1 yields itself, or 0.
    """
    t, signed = o.type(d), d.is_signed
    opcode = ("s" if signed else "u") + ("rem" if remainder else "div")
    if isinstance(divisor, Literal) and b == o.constant(divisor.value, d) and int(divisor.value) not in (0, -1):
        return o.op(f"{opcode} {t} {a}, {b}")
    zero = o.compare("icmp eq", t, b, o.constant(0, d))
    unsafe = zero
    if signed:
        smallest = o.compare("icmp eq", t, a, o.constant(-(1 << d.bits - 1), d))
        minus = o.compare("icmp eq", t, b, o.constant(-1, d))
        unsafe = o.binary("or", o.bits, zero, o.binary("and", o.bits, smallest, minus))
    # division by one yields the result of the overflowing case
    safe = o.select(unsafe, t, o.constant(1, d), b)
    if o.lanes.width == 1 or d.bits == 64:
        result = o.op(f"{opcode} {t} {a}, {safe}")
    else:
        result = _by_floats(o, d, a, safe)
        if remainder:
            result = o.binary("sub", t, a, o.binary("mul", t, result, safe))
    return o.select(zero, t, a if remainder else o.constant(-1, d), result)


def _by_floats(o: Ops, d: DType, a: str, b: str) -> str:
    """Divides by floats, as vectors have no integer division. A float that holds the operands with some bits to spare
    yields the exact quotient: rounding cannot reach the next integer, which is at least 1/b away."""
    float_ = "double" if d.bits > 16 else "float"
    i, f = REGISTER[d], o.vector(float_)
    to_float, to_int = ("sitofp", "fptosi") if d.is_signed else ("uitofp", "fptoui")
    quotient = o.op(f"fdiv {f} {o.cast(to_float, i, a, float_)}, {o.cast(to_float, i, b, float_)}")
    return o.cast(to_int, float_, quotient, i)


def shift(o: Ops, d: DType, opcode: str, a: str, by: str, amount: Atom) -> str:
    """Emits a shift; by the width or more (or a negative number) it yields 0, or the sign if it is arithmetic."""
    t, last = o.type(d), o.constant(d.bits - 1, d)
    if isinstance(amount, Literal) and 0 <= int(amount.value) < d.bits:
        return o.op(f"{opcode} {t} {a}, {by}")
    if opcode == "ashr":
        return o.op(f"ashr {t} {a}, {o.intrinsic('umin', REGISTER[d], by, last)}")
    moved = o.op(f"{opcode} {t} {a}, {o.binary('and', t, by, last)}")
    return o.select(o.compare("icmp ult", t, by, o.constant(d.bits, d)), t, moved, o.constant(0, d))
