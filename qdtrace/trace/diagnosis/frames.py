"""The frames of the user in which the body of a loop or condition runs, and their variables.

Usually one. A body that is reached through a generator or a context manager runs in the frame that drives it as well.
"""

from __future__ import annotations

import contextlib
import inspect
import numbers
import os
from typing import TYPE_CHECKING

import jax
import numpy as np

from qdtrace.errors import Loc
from qdtrace.trace.diagnosis.bytecode import code_map
from qdtrace.trace.handles import MemoryHandle
from qdtrace.tracebacks import is_hidden

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType
    from typing import Any

_CONTEXTLIB = os.path.abspath(contextlib.__file__)
_LARGE = 256
"""Most items of a tuple or list that is looked into."""


def body_frames(frame: FrameType | None) -> list[FrameType]:
    """Returns the frame that opens a region and those that run the rest of its body, innermost first."""
    found: list[FrameType] = []
    while frame is not None:
        code = frame.f_code
        if not is_hidden(code.co_filename):
            # A method of the protocols has returned before the body begins.
            if code.co_name not in ("__enter__", "__next__"):
                found.append(frame)
                if not code.co_flags & inspect.CO_GENERATOR:
                    break
        elif code.co_filename != _CONTEXTLIB:
            break
        frame = frame.f_back
    return found


class Variables:
    """The variables of a frame before a body, and where in its code the body stands."""

    def __init__(self, frame: FrameType, opname: str) -> None:
        self.frame = frame
        self.codes = code_map(frame.f_code)
        self.position = self.codes.at(frame.f_lasti)
        self.is_placed = self.codes.opname(self.position) == opname
        """True if the body belongs to a statement of this frame, so its code tells what comes next."""
        self.before: dict[str, object] = dict(frame.f_locals)

    def has_moved(self) -> bool:
        """Returns whether the frame is at another instruction than before the body."""
        return self.codes.at(self.frame.f_lasti) != self.position

    def rebound(self) -> Iterator[tuple[str, object, object]]:
        """Yields (name, old, new) for each variable that has another value now."""
        before = self.before
        for name, new in self.frame.f_locals.items():
            if name in before:
                old = before[name]
                if old is not new and _differs(old, new):
                    yield name, old, new

    def new(self) -> Iterator[tuple[str, object]]:
        """Returns (name, value) for each variable that had none."""
        before = self.before
        return ((name, value) for name, value in self.frame.f_locals.items() if name not in before)

    def loc(self, position: int) -> Loc:
        """Returns the line of an instruction."""
        code = self.frame.f_code
        return Loc(code.co_filename, self.codes.line(position) or self.frame.f_lineno, code.co_name)


def leaves(value: object) -> Iterator[object]:
    """Yields the leaves of a value, tuples and lists opened."""
    if isinstance(value, (tuple, list)) and len(value) <= _LARGE:
        for item in value:
            yield from leaves(item)
    else:
        yield value


def is_static(value: object) -> bool:
    """Returns whether a value is a constant of the trace."""
    return value is None or isinstance(value, (numbers.Number, np.generic, str, np.ndarray))


def is_data(value: object) -> bool:
    """Returns whether a value takes part in the computation, unlike a function, a module or an object."""
    return all(is_static(v) or isinstance(v, (jax.Array, MemoryHandle)) for v in leaves(value))


def is_whole(value: object) -> bool:
    """Returns whether a value is data in one piece: reading it is reading all of it."""
    return is_data(value) and not isinstance(value, (tuple, list))


def _differs(old: Any, new: Any) -> bool:
    if old is new:
        return False
    if type(old) is not type(new):
        return True
    if isinstance(old, MemoryHandle):
        return old.tracer is not new.tracer
    if isinstance(old, (tuple, list)):
        return len(old) != len(new) or any(_differs(a, b) for a, b in zip(old, new, strict=True))
    return not (isinstance(old, (numbers.Number, np.generic, str)) and bool(old == new))
