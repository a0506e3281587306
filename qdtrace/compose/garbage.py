"""Garbage collection of Python, paused while a function is traced, differentiated and compiled.

Tracing, import and passes make a few hundred thousand small objects that stay live, and next to no cycles. Every full
collection walks all of them again: a fifth of the compile time of a function with a hundred loops. Modules loaded for
a first call and graphs read from disk do the same: there a collection takes 30 to 100 ms of a process. So they are no
young objects either when the collector goes on.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_lock = threading.Lock()
_depth = 0
_was_on = False


@contextmanager
def paused_garbage_collection() -> Generator[None]:
    """Stops the collector until the outermost of such blocks of all threads ends, if it was running."""
    global _depth, _was_on
    with _lock:
        if not _depth:
            _was_on = gc.isenabled()
            gc.disable()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth and _was_on:
                if not gc.get_freeze_count():  # to the oldest generation with what was made, without a walk
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
