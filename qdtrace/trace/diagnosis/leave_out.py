"""Leaves out the block of a `with` statement: an exception is raised at its first instruction.

The `__exit__` of the statement then swallows it. Used by traces for comparison only (`replay`).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType, FrameType


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
    if sys.version_info >= (3, 12):
        _by_monitoring(frame)
    else:
        _by_tracing(frame)


def _by_monitoring(frame: FrameType) -> None:
    monitoring: Any = sys.monitoring  # type: ignore[attr-defined, unused-ignore]
    tool = next((t for t in range(6) if monitoring.get_tool(t) is None), None)
    if tool is None:
        _by_tracing(frame)
        return
    monitoring.use_tool_id(tool, "qdtrace")
    code = frame.f_code
    event = monitoring.events.INSTRUCTION

    def at_instruction(_: CodeType, __: int) -> None:
        if sys._getframe(1) is not frame:  # pyright: ignore[reportPrivateUsage]
            return
        monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
        raise LeftOut

    monitoring.register_callback(tool, event, at_instruction)
    monitoring.set_local_events(tool, code, event)


def _by_tracing(frame: FrameType) -> None:
    tracing, own, opcodes = sys.gettrace(), frame.f_trace, frame.f_trace_opcodes

    def at_instruction(_: FrameType, event: str, __: Any) -> Any:
        if event != "opcode":
            return at_instruction
        frame.f_trace, frame.f_trace_opcodes = own, opcodes
        sys.settrace(tracing)
        raise LeftOut(tracing)

    frame.f_trace, frame.f_trace_opcodes = at_instruction, True
    sys.settrace(tracing or (lambda *_: None))
