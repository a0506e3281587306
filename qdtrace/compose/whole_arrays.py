"""Gives a task an array as memory, also a small one, which would be scalars: the graph is that of any length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.compose.segment import Constant, Operand, Pending
from qdtrace.trace.dtypes import as_jax
from qdtrace.trace.importer.values import ArrayRef

if TYPE_CHECKING:
    from qdtrace.compose.segment import Entry, Segment
    from qdtrace.trace import jaxprs


def whole_array(segment: Segment, entry: Entry, atom: jaxprs.Atom) -> ArrayRef | None:
    """Returns an array as memory; None for scalars of a serial task that is still open."""
    if isinstance(entry, Constant):
        return ArrayRef(segment.param_of(atom, as_jax(entry.value)))
    if isinstance(entry, Operand) or (isinstance(entry, Pending) and entry.atoms is None):
        return ArrayRef(entry.ref)
    return None
