"""Programs that nest deeper than Python's recursion limit lets the package, or JAX, walk them."""

from __future__ import annotations

import collections
import contextlib
import sys
from typing import TYPE_CHECKING

from qdtrace.errors import Loc, UnsupportedError
from qdtrace.trace.nesting import TooDeepError
from qdtrace.trace.own_files import is_user_file

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType

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
        lines = _users(error.__traceback__)
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


def _users(traceback: TracebackType | None) -> list[Loc]:
    """Returns the user's lines that an exception passed through."""
    found: list[Loc] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename):
            found.append(Loc(code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return found


def _busiest(lines: list[Loc]) -> Loc | None:
    """Returns the most frequent line, which is in the function that calls itself."""
    return max(lines, key=collections.Counter(lines).__getitem__, default=None)
