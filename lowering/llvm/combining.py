"""The operations of accumulations and atomic updates on registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.arithmetic import RULES, minimum
from lowering.llvm.types import REGISTER, REGISTER_BITS
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from lowering.llvm.vectors import Value
    from qdtrace.ir.program import Atom


def combine(o: Ops, op: str, d: DType, a: str, b: str) -> str:
    """Returns `a op b` as the elementwise primitives do it; for bools `add` and `max` are or, `mul` and `min` and."""
    if op in ("min", "max"):
        return minimum(o, d, a, b, largest=op == "max")
    if d is DType.bool and op in ("add", "mul"):
        return o.binary("or" if op == "add" else "and", o.bits, a, b)
    return RULES[op](o, d, [a, b], {}, ())


def updated(f: Frame, op: str, old: Value, operands: Sequence[Atom]) -> Value:
    """Returns an element after an `accum` or `atomic` with these operands, from its value before."""

    def new(o: Ops, registers: list[str]) -> str:
        if op == "exchange":
            return registers[1]
        return swapped(o, old.dtype, *registers) if op == "cas" else combine(o, op, old.dtype, *registers)

    return f.mapped(old, operands, new)


def swapped(o: Ops, d: DType, found: str, expected: str, new: str) -> str:
    """Returns `new` if the bits found equal those expected, else the value found."""
    kind = f"i{REGISTER_BITS[d]}"
    bits = [o.cast("bitcast", REGISTER[d], x, kind) for x in (found, expected)]
    return o.select(o.compare("icmp eq", o.vector(kind), *bits), o.type(d), new, found)
