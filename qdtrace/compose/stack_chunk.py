"""One large chunk of Python's stack while a function is traced and compiled.

CPython keeps the frames of Python functions in chunks of 16 KiB, and frees a chunk when the first frame in it returns.
If a loop calls a function right at the end of a chunk, each call allocates and frees a chunk: passes over a program of
45 000 equations took 2.5 times as long at such a depth of the stack. A frame that needs more than a chunk gets a larger
one, in which the frames above it are too.
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
"""Words that the frame needs; its chunk, a power of two, has as much again. Untouched memory costs nothing."""


def _call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    return function(*args, **kwargs)


_roomy = cast("Callable[..., object]", FunctionType(_call.__code__.replace(co_stacksize=WORDS), globals(), "_roomy"))


def in_one_chunk(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function so that the frames of all its calls are in one chunk; it is a boundary of tracebacks."""

    @boundary
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return cast("R", _roomy(function, *args, **kwargs))

    return call
