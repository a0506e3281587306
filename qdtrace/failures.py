"""Checks that failed on a device that nobody waits for, or one of several: backends say where to look, calls look."""

from __future__ import annotations

import atexit
import collections
import functools
import threading
import warnings
from typing import TYPE_CHECKING

from qdtrace.errors import QdError, QdWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

watched: dict[Callable[[], QdError | None], Sequence[memoryview]] = {}
"""What `raise_failures` calls, and the memory that is zero while it would get nothing."""
glance: Callable[[], bytes] = bytes
"""Gives `fine` while nothing has failed. A built-in function: each direct call of a function looks, and between calls
of XLA a line of Python takes ten times what it takes in a loop."""
fine = b""
_one_at_a_time = threading.Lock()


def watch(look: Callable[[], QdError | None], memory: Callable[[], Sequence[memoryview]]) -> None:
    """Has `raise_failures` call a function that gives the error of what failed since it was last called, or None while
    the memory is zero. A later call for the same function replaces the memory."""
    if not watched:
        atexit.register(tell)
    with _one_at_a_time:  # asked for in here: of two threads that add to it, the second one finds what both have
        watched[look] = memory()
        expect_what_is_watched()


def expect_what_is_watched() -> None:
    """Makes `glance` and `fine` those of the memory that is watched."""
    global glance, fine
    views = [view for memory in tuple(watched.values()) for view in memory]
    fine = bytes(sum(view.nbytes for view in views))
    glance = views[0].tobytes if len(views) == 1 else functools.partial(b"".join, views)


def raise_failures() -> None:
    """Raises what failed in earlier calls, if anything did."""
    for look in tuple(watched):
        error = look()
        if error is not None:
            raise error


def tell() -> None:
    """Warns of what failed and nobody asked for, as the process ends."""
    for look in tuple(watched):
        error = look()
        if error is not None:
            warnings.warn(f"nobody waited for this {type(error).__name__}: {error}", QdWarning, stacklevel=2)


_later: collections.deque[QdError] = collections.deque()
_any_later = bytearray(1)


def tell_later(error: QdError) -> None:
    """Keeps an error of Python code that must not raise it."""
    _later.append(error)
    _any_later[0] = 1
    watch(_take_later, lambda: [memoryview(_any_later)])


def _take_later() -> QdError | None:
    _any_later[0] = 0
    errors: list[QdError] = []
    while _later:
        errors.append(_later.popleft())
    return with_others(errors)


def with_others(errors: Sequence[QdError]) -> QdError | None:
    """The first error, with a note for each other one; None where there is none."""
    for text in dict.fromkeys(map(str, errors)):
        if text != str(errors[0]):
            errors[0].add_note(f"another check failed: {text}")
    return errors[0] if errors else None
