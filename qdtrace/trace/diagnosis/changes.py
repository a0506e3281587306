"""Changes that a body made, as its author calls them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.trace.buffers import Buffer
from qdtrace.trace.cells import Cell
from qdtrace.trace.compat import Tracer

if TYPE_CHECKING:
    from typing import Any


@frozen
class StateChange:
    """Something that a body changed, or may have changed."""

    name: str
    """Name in the user's code: `s.b.c`, `seen[0]`, `count`; empty if it is not known."""
    kind: str
    """The new content: `traced`, `buffer` or `static`. `drawn`: the next of a stream was taken; `blind`: it cannot be
    seen; `unknown`: nothing was found."""

    was_cell: bool = False
    """True if the name stood for a qd.local before, which was to be set."""

    def __str__(self) -> str:
        return f"`{self.name}`" if self.name else "a value"


def rebound(name: str, old: object, new: object) -> StateChange:
    """Returns the change of a variable that stands for something else now."""
    return StateChange(name, kind_of(new), isinstance(old, Cell))


def kind_of(value: Any) -> str:
    """Returns the kind of a value, tuples and lists opened."""
    if isinstance(value, (Tracer, Cell)):
        return "traced"
    if isinstance(value, Buffer):
        return "buffer"
    if type(value) in (tuple, list):
        kinds = {kind_of(v) for v in value[:64]}
        return next((k for k in ("traced", "buffer") if k in kinds), "static")
    return "static"
