"""Cells and buffers that one assignment stores into and reads afterwards, as in `a.value, b.value = b, a`.

In Python the right side is taken first. A handle is read where it is stored, which is behind the stores into the
targets in front of it.
"""

from __future__ import annotations

import ast
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from qdtrace.errors import TraceValueError, frame_loc
from qdtrace.frozen import mutable
from qdtrace.trace.diagnosis.statement import path_at
from qdtrace.tracebacks import user_frame

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import CodeType

    import jax
    import numpy as np


class Memory(Protocol):
    """A cell or buffer."""

    noun_of_names: str

    @property
    def tracer(self) -> jax.Array:
        """The tracer of the memory."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        ...


@mutable(eq=False)
class Stores:
    """The last stores of a trace: those of one frame, as long as each follows the last one in its code."""

    frame: int = 0
    """Identity of the user's frame that stored; another one may have it later."""
    at: int = 0
    """Offset of the instruction of the last store."""
    tracers: dict[int, int] = field(default_factory=dict[int, int])
    """Tracer, by identity, of what was stored into -> offset of the last store into it."""

    def add(self, memory: Memory) -> None:
        """Notes a store; one that does not follow the last one begins anew."""
        frame = user_frame(2)
        if frame is None:
            return
        if self.frame != id(frame) or frame.f_lasti < self.at:
            self.tracers.clear()
        self.frame, self.at = id(frame), frame.f_lasti
        self.tracers[id(memory.tracer)] = frame.f_lasti

    def refuse(self, values: Iterable[Memory]) -> None:
        """Refuses to store the content of cells and buffers that another target of the same assignment has changed.

        Raises TraceValueError at the assignment.
        """
        values = [value for value in values if id(value.tracer) in self.tracers]
        frame = user_frame(2) if values else None
        if frame is None or self.frame != id(frame) or frame.f_lasti <= self.at:
            return
        statement = _targets(frame.f_code, frame.f_lasti)
        for value in values if statement is not None else ():
            if _targets(frame.f_code, self.tracers[id(value.tracer)]) is statement:
                noun, keep = value.noun_of_names, ".value" if value.noun_of_names == "cell" else "[...]"
                raise TraceValueError(
                    f"this assignment changes a {noun}, then stores what it holds: its content is read only then",
                    loc=frame_loc(frame),
                    help=f"take the contents before the stores: write `{keep}` behind each {noun} on the right side",
                )


def _targets(code: CodeType, at: int) -> ast.Assign | None:
    """Returns the assignment to several targets that an instruction belongs to; None for any other statement."""
    found = next((node for node in reversed(path_at(code, at)) if isinstance(node, ast.stmt)), None)
    several = isinstance(found, ast.Assign) and any(isinstance(t, (ast.Tuple, ast.List)) for t in found.targets)
    return found if isinstance(found, ast.Assign) and several else None
