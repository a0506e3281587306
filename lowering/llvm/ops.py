"""Single instructions over one vector (or one scalar), in terms of which the rules are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.types import REGISTER, constant
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.target import Target
    from lowering.llvm.text import Text
    from lowering.llvm.vectors import Lanes


class Ops:
    """Emits instructions of a fixed number of lanes."""

    def __init__(self, text: Text, lanes: Lanes, target: Target, fast_math: bool) -> None:
        self.text = text
        self.op = text.op
        self.lanes = lanes
        self.target = target
        self.fast_math = fast_math
        self.flags = "contract " if fast_math else ""
        self.types = {d: lanes.of(t) for d, t in REGISTER.items()}
        self.bits = self.types[DType.bool]

    def type(self, dtype: DType) -> str:
        """Returns the register type of a dtype in these lanes."""
        return self.types[dtype]

    def vector(self, scalar: str) -> str:
        """Returns the vector type of an LLVM scalar type in these lanes."""
        return self.lanes.of(scalar)

    def constant(self, value: object, dtype: DType) -> str:
        """Returns a constant in all lanes, as an operand."""
        return self.lanes.splat(REGISTER[dtype], constant(value, dtype))

    def number(self, scalar: str, value: int) -> str:
        """Returns an integer constant of an LLVM type in all lanes."""
        return self.lanes.splat(scalar, str(value))

    def binary(self, opcode: str, type_: str, a: str, b: str) -> str:
        """Emits `a op b`."""
        return self.op(f"{opcode} {type_} {a}, {b}")

    def compare(self, predicate: str, type_: str, a: str, b: str) -> str:
        """Emits a comparison; the predicate includes the opcode: "icmp slt", "fcmp olt"."""
        return self.op(f"{predicate} {type_} {a}, {b}")

    def select(self, condition: str, type_: str, a: str, b: str) -> str:
        """Emits a lane-wise choice."""
        return self.op(f"select {self.bits} {condition}, {type_} {a}, {type_} {b}")

    def cast(self, opcode: str, source: str, value: str, target: str) -> str:
        """Emits `trunc`, `sext`, `fpext`, `bitcast`, ...; types are LLVM scalar types."""
        if source == target:
            return value
        return self.op(f"{opcode} {self.lanes.of(source)} {value} to {self.lanes.of(target)}")

    def intrinsic(self, name: str, scalar: str, *values: str, extra: str = "", flags: str = "") -> str:
        """Emits a call of an intrinsic over one type; `extra` are further operands ("i1 false")."""
        type_ = self.lanes.of(scalar)
        symbol = f"llvm.{name}.{self.lanes.suffix(scalar)}"
        kinds = [type_] * len(values) + ([extra.split()[0]] if extra else [])
        self.text.module.declare(symbol, type_, ", ".join(kinds))
        operands = [f"{type_} {v}" for v in values] + ([extra] if extra else [])
        return self.op(f"call {flags}{type_} @{symbol}({', '.join(operands)})")

    def saturating(self, name: str, source: str, value: str, target: str) -> str:
        """Emits `fptosi.sat` or `fptoui.sat`."""
        a, b = self.lanes.of(source), self.lanes.of(target)
        symbol = f"llvm.{name}.sat.{self.lanes.suffix(target)}.{self.lanes.suffix(source)}"
        self.text.module.declare(symbol, b, a)
        return self.op(f"call {b} @{symbol}({a} {value})")
