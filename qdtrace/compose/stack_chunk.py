"""Python's stack in one piece while a function is traced and compiled.

CPython keeps the frames of Python functions in chunks of 16 KiB, and frees a chunk when the first frame in it returns.
Where a loop calls a function right at the end of a chunk, each call asks the system for memory and gives it back:
passes over a program of 45 000 equations took 2.5 times as long at such a depth of the stack. A frame that asks for
more than a chunk gets a larger one, in which the frames above it lie, too.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from qdtrace.errors import boundary

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")

WORDS = 1 << 16
"""Room that the frame asks for; the chunk, a power of two, has as much again. Untouched memory costs nothing."""


def _call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


_roomy = cast("Callable[..., object]", FunctionType(_call.__code__.replace(co_stacksize=WORDS), globals(), "_roomy"))


def in_one_chunk(function: Callable[P, R]) -> Callable[P, R]:
    """The function, called with room for the frames of all that it calls; a boundary of tracebacks."""

    @boundary
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", _roomy(function, *args, **kwargs))

    return call
