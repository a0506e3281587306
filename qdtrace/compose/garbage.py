"""Garbage collection of Python, paused while a function is traced, differentiated and compiled.

Tracing, import and passes make a few hundred thousand small objects that stay live, and next to no cycles. Every full
collection walks all of them again: a fifth of the compile time of a function with a hundred loops. Modules loaded for
a first call and graphs read from disk do the same: there a collection takes 30 to 100 ms of a process. So many objects
are no young ones either when the collector goes on, until enough came so for a full collection: of JAX's traces, some
are in cycles.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

MANY = 20_000
"""Objects that one block has to make, so that they are not walked at its end."""
WALKED = 1_000_000
"""Objects that blocks make without a walk, before all are walked."""

_lock = threading.Lock()
_depth = 0
_was_on = False
_not_walked = 0


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
                _age()
                gc.enable()


def _age() -> None:
    """Has many young objects join the oldest generation."""
    global _not_walked
    made = gc.get_count()[0]
    if made < MANY:
        return
    _not_walked += made
    if _not_walked > WALKED:
        _not_walked = 0
        gc.collect()
    elif not gc.get_freeze_count():  # that count walks what is frozen, and what others froze stays so
        gc.freeze()
        gc.unfreeze()
