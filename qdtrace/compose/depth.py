"""Programs that nest deeper than Python's recursion limit lets the package, or JAX, walk them."""

from __future__ import annotations

import collections
import contextlib
import sys
from typing import TYPE_CHECKING

from qdtrace.errors import UnsupportedError
from qdtrace.trace.nesting import TooDeepError
from qdtrace.trace.source import traceback_locs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from qdtrace.errors import Loc

_ENDLESS = 0.8
"""Fraction of the recursion limit that the user's frames take if a function of theirs calls itself without end."""


@contextlib.contextmanager
def depth_told(name: str, deepest: Callable[[], Loc | None] | None = None) -> Generator[None]:
    """Turns a RecursionError of this package or of JAX into an error with a fix.

    `deepest` returns the user's most deeply nested line, if the traceback does not show it.
    """
    try:
        yield
    except RecursionError as error:
        lines = traceback_locs(error.__traceback__)
        if len(lines) > _ENDLESS * sys.getrecursionlimit():
            raise UnsupportedError(
                f"{name}: a function calls itself without end while it is traced",
                loc=_busiest(lines),
                help="a condition that is traced does not end it: write a loop, lax.while_loop or qd.while_",
            ) from None
        loc = error.loc if isinstance(error, TooDeepError) else deepest() if deepest is not None else None
        raise UnsupportedError(
            f"{name}: loops, conditions and calls nest deeper than Python's recursion limit of "
            f"{sys.getrecursionlimit()} lets them be walked",
            loc=loc or _busiest(lines),
            help="join conditions, `qd.when(a & b)`, or raise the limit before the call: "
            "`sys.setrecursionlimit(20_000)`",
        ) from None


def _busiest(lines: list[Loc]) -> Loc | None:
    """Returns the most frequent line, which is in the function that calls itself."""
    return max(lines, key=collections.Counter(lines).__getitem__, default=None)
