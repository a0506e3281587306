"""The table of emission functions, by primitive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.triton import control, elementwise, memory
from lowering.triton.plan import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lowering.triton.frame import Frame
    from qdtrace.ir.program import Eqn

    Rule = Callable[[Frame, Eqn], None]

_WAYS = {
    Way.OWN: memory.accumulate,
    Way.SUM: memory.accumulate_sum,
    Way.COUNT: memory.count,
    Way.ATOMIC: memory.accumulate_atomically,
}


def _accum(f: Frame, eqn: Eqn) -> None:
    _WAYS[f.ways[eqn]](f, eqn)


RULES: Mapping[str, Rule] = dict.fromkeys(elementwise.EXPRESSIONS, elementwise.emit) | {
    "load": memory.load, "store": memory.store, "accum": _accum,
    "bound": control.bound, "check": control.check, "if": control.emit_if, "for": control.emit_for,
}  # fmt: skip
