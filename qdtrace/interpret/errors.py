"""Errors of an interpreted run."""

from __future__ import annotations

from qdtrace.errors import QdError


class InterpreterError(QdError):
    """The program did what has no meaning: an index out of range, a read of unset memory, a race, an endless loop."""
