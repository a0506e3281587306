"""Garbage collection of Python, paused while a function is traced, differentiated and compiled.

Tracing, import and passes make a few hundred thousand small objects that stay live, and next to no cycles. Every full
collection walks all of them again: a fifth of the compile time of a function with a hundred loops. Modules loaded for
a first call and graphs read from disk do the same: there a collection takes 30 to 100 ms of a process. So these objects
are no young ones either when the collector goes on, which would walk them at once, and all others where that is due.
Of JAX's traces some are in cycles: when enough came so, all are walked.
"""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

WALKED = 200_000
"""Objects that may join the oldest generation without a walk, before all are walked; a quarter of all, if that is more,
as for Python's own collector."""
IMMORTAL = 5000
"""More objects than Python 3.12 itself has among the frozen ones: some hundred that never end join them."""


def _unwalked() -> int:
    """Returns how many objects no full collection has walked, or more."""
    least, rounds, _ = gc.get_threshold()
    young, middle, old = gc.get_count()
    return young + least * (middle + rounds * old)


_lock = threading.Lock()
_depth = 0
_was_on = False
_not_walked = -_unwalked()  # those of imports stay
_allowed = WALKED
_others_froze = False


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
    """Has young objects join the oldest generation, if the collector would walk them now."""
    global _not_walked, _allowed, _others_froze
    least = gc.get_threshold()[0]
    if not least or gc.get_count()[0] <= least:
        return
    _others_froze = _others_froze or gc.get_freeze_count() > IMMORTAL  # to count them is to walk them
    if _others_froze:  # and they stay so: Python's collector goes on as it would
        return
    _not_walked += _unwalked()
    if _not_walked > _allowed:
        gc.collect()
        _not_walked, _allowed = 0, max(WALKED, len(gc.get_objects()) // 4)
    else:
        gc.freeze()
        gc.unfreeze()
