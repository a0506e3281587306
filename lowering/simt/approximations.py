"""Functions, division and roots of f32 by NVIDIA's approximating instructions: `fast_math="approx"`.

Each is one instruction on the special-function unit, and a product by a constant around exp and log. f16 and bf16 are
computed as f32 and rounded, other dtypes as without the option. Subnormal operands and results are zeros, as everywhere
in kernels with `fast_math`. docs/approximations.md lists the errors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm import rules
from lowering.llvm.conversions import round_to
from lowering.llvm.quotients import note_divisor
from lowering.llvm.types import compute_dtype
from qdtrace.ir.primitives import DIV
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from lowering.llvm.rules import Rule
    from qdtrace.ir.program import Eqn

_INSTRUCTIONS = {
    "sin": "sin.approx.ftz.f", "cos": "cos.approx.ftz.f", "exp": "ex2.approx.ftz.f32", "exp2": "ex2.approx.ftz.f32",
    "log": "lg2.approx.ftz.f", "log2": "lg2.approx.ftz.f", "tanh": "tanh.approx.f32", "sqrt": "sqrt.approx.ftz.f",
    "rsqrt": "rsqrt.approx.ftz.f", "div": "div.full.ftz",
}  # fmt: skip
"""LLVM's name of the instruction of each primitive."""
_BEFORE = {"exp": 1 / math.log(2)}
"""Factors of the operand, by primitive."""
_BEHIND = {"log": math.log(2)}
"""Factors of the result, by primitive."""


def _scaled(o: Ops, value: str, factor: float | None) -> str:
    return value if factor is None else o.op(f"fmul float {value}, {o.constant(factor, DType.f32)}")


def _approximate(f: Frame, eqn: Eqn) -> None:
    name, atoms, out = eqn.primitive.name, eqn.invars, eqn.outvars[0]
    d, o = atoms[0].dtype, f.ops(out)
    if compute_dtype(d) is not DType.f32:
        rules.RULES[name](f, eqn)
        return

    def one(values: list[str]) -> str:
        operands = ", ".join(f"float {_scaled(o, value, _BEFORE.get(name))}" for value in values)
        found = o.op(f"call float @llvm.nvvm.{_INSTRUCTIONS[name]}({operands})")
        return round_to(o, d, _scaled(o, found, _BEHIND.get(name)))

    f.bind(out, [one(values) for values in f.rows(out, atoms)])
    if eqn.primitive is DIV:
        note_divisor(f, out)


RULES: Mapping[str, Rule] = dict.fromkeys(_INSTRUCTIONS, _approximate)
