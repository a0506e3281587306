"""Failed checks that no call could raise: backends register where they are recorded, later calls look there."""

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
"""Functions that `raise_failures` calls, with memory that is zero while they would return None."""
glance: Callable[[], bytes] = bytes
"""Returns `fine` while nothing has failed. It is a built-in function, as each direct call of a function calls it, and
between calls of XLA a line of Python takes ten times as long as in a loop."""
fine = b""
_one_at_a_time = threading.Lock()


def watch(look: Callable[[], QdError | None], memory: Callable[[], Sequence[memoryview]]) -> None:
    """Registers `look`, which returns the error since its last call, or None while `memory` is zero.

    `raise_failures` calls it. A later registration of the same function replaces the memory.
    """
    if not watched:
        atexit.register(tell)
    with _one_at_a_time:  # `memory` is called in here: of two threads that grow it, the second one sees both changes
        watched[look] = memory()
        expect_what_is_watched()


def expect_what_is_watched() -> None:
    """Rebuilds `glance` and `fine` for the memory that is watched."""
    global glance, fine
    views = [view for memory in tuple(watched.values()) for view in memory]
    fine = bytes(sum(view.nbytes for view in views))
    glance = views[0].tobytes if len(views) == 1 else functools.partial(b"".join, views)


def raise_failures() -> None:
    """Raises the error of a check that failed in an earlier call, if there is one."""
    for look in tuple(watched):
        error = look()
        if error is not None:
            raise error


def tell() -> None:
    """Warns of failures that nobody has raised, when the process ends."""
    for look in tuple(watched):
        error = look()
        if error is not None:
            warnings.warn(f"nobody waited for this {type(error).__name__}: {error}", QdWarning, stacklevel=2)


_later: collections.deque[QdError] = collections.deque()
_any_later = bytearray(1)


def tell_later(error: QdError) -> None:
    """Keeps an error of Python code that must not raise it, for a later call."""
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
    """Returns the first error, with a note for each different one, or None if there is none."""
    for text in dict.fromkeys(map(str, errors)):
        if text != str(errors[0]):
            errors[0].add_note(f"another check failed: {text}")
    return errors[0] if errors else None
