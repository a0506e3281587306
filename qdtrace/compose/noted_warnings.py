"""Warnings that are given while a function is traced: a process that does not trace it would not give them."""

from __future__ import annotations

import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from qdtrace.errors import on_warning

if TYPE_CHECKING:
    from collections.abc import Generator

_lock = threading.Lock()
_lists: list[list[str]] = []
"""The lists of all open blocks."""
_shown: Any = None
"""The function that shows warnings outside of these blocks."""


@contextmanager
def noted_warnings() -> Generator[list[str]]:
    """Gives a list to which the texts of warnings in the block are added: of this package, and those that are shown."""
    global _shown
    given: list[str] = []
    with _lock:
        if not _lists:
            _shown, warnings.showwarning = warnings.showwarning, _show
        _lists.append(given)
    try:
        yield given
    finally:
        with _lock:
            _lists[:] = [other for other in _lists if other is not given]
            if not _lists and warnings.showwarning is _show:
                warnings.showwarning = _shown


def _note(text: str) -> None:
    for given in tuple(_lists):
        given.append(text)


def _show(message: Any, *args: Any, **kwargs: Any) -> None:
    _note(str(message))
    _shown(message, *args, **kwargs)


on_warning.append(_note)
