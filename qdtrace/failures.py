"""Checks that failed on a device, whose calls nobody waits for: backends say where to look, calls look."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.errors import QdError

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
