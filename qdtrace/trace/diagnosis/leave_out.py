"""Leaves out the block of a `with` statement: an exception is raised at its first instruction.

The `__exit__` of the statement then swallows it. Used by traces for comparison only (`replay`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


class LeftOut(BaseException):
    """Exception that ends a block that does not run."""

    def __init__(self, tracing: Any = None) -> None:
        super().__init__()
        self._tracing = tracing

    def resume(self) -> None:
        """Puts back the trace function of a debugger, which Python drops when one raises."""
        if self._tracing is not None:
            sys.settrace(self._tracing)


def leave_out(frame: FrameType) -> None:
    """Makes the frame raise `LeftOut` at its next instruction."""
    tracing, own, opcodes = sys.gettrace(), frame.f_trace, frame.f_trace_opcodes

    def at_instruction(_: FrameType, event: str, __: object) -> object:
        if event != "opcode":
            return at_instruction
        frame.f_trace, frame.f_trace_opcodes = own, opcodes
        sys.settrace(tracing)
        raise LeftOut(tracing)

    frame.f_trace, frame.f_trace_opcodes = at_instruction, True
    sys.settrace(tracing or (lambda *_: None))
