"""The table of emission functions, by primitive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.plan.sums import Where
from lowering.triton import control, elementwise, memory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.triton.frame import Frame, Rule
    from qdtrace.ir.program import Eqn

_ACCUMULATE = {
    Where.OWN: memory.accumulate,
    Where.REGISTERS: memory.accumulate_sum,
    Where.COPY: memory.count,
    Where.SHARED: memory.accumulate_atomically,
    Where.ATOMIC: memory.accumulate_atomically,
}


def _accum(f: Frame, eqn: Eqn) -> None:
    _ACCUMULATE[f.where(eqn)](f, eqn)


RULES: Mapping[str, Rule] = dict.fromkeys(elementwise.EXPRESSIONS, elementwise.emit) | {
    "load": memory.load, "store": memory.store, "accum": _accum,
    "bound": control.bound, "check": control.check, "if": control.emit_if, "for": control.emit_for,
}  # fmt: skip
