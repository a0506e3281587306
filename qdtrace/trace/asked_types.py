"""Code that asks for the type of a value, where a `Length` is no int.

`isinstance(n, int)` holds of a `Length`, and `n.__class__` is int. But `type(n)` is `Length`, and `jax.tree` takes it
for no leaf. Code that asks in these ways may do something else than at a plain number, and no guard would tell.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import jax

from qdtrace.trace.own_files import INSTALLED, STANDARD
from qdtrace.tracebacks import is_hidden

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import CodeType, FrameType

_all_leaves: Any = jax.tree_util.all_leaves
_flat: Any = jax.tree.flatten, jax.tree_util.tree_flatten
_TREES = tuple([f.__code__.co_filename for f in _flat])
"""Files of functions that take a pytree apart."""


@contextlib.contextmanager
def told_of_types() -> Generator[list[str]]:
    """Runs a block, and fills a list with names of code of others that ran in it and may ask for types.

    Raises RuntimeError if another function profiles this thread, which would see nothing of the block.
    """
    if sys.getprofile() is not None:
        raise RuntimeError("another profile function is set")
    seen: set[CodeType] = set()
    found: list[str] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code not in seen:
            if code is _all_leaves.__code__:
                found.extend(_callers(frame.f_back))
                return
            seen.add(code)
            if not _is_trusted(code) and _knows_type(code, frame):
                found.append(code.co_name)

    sys.setprofile(look)
    try:
        yield found
    finally:
        sys.setprofile(None)


def took_apart() -> list[str]:
    """Returns the name of the code of others that takes a pytree apart, in whose flattening this is called; or none."""
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    if frame.f_code.co_filename not in _TREES:  # a call of a compiled function, whose arguments become arrays
        return []
    while frame is not None and frame.f_code.co_filename in _TREES:
        frame = frame.f_back
    return _callers(frame)


def _callers(frame: FrameType | None) -> list[str]:
    return [] if frame is None or _is_trusted(frame.f_code) else [frame.f_code.co_name]


def _knows_type(code: CodeType, frame: FrameType) -> bool:
    """Returns whether code knows `type`, by any name; an attribute that has its name is taken for it."""
    named = [frame.f_globals.get(name, frame.f_builtins.get(name)) for name in code.co_names]
    return any(value is type for value in (*named, *frame.f_locals.values()))


def _is_trusted(code: CodeType) -> bool:
    """Returns whether code is of a library that meets lengths in each function, and takes them for numbers."""
    file = code.co_filename
    return is_hidden(file) or file.startswith("<frozen ") or (file.startswith(STANDARD) and not INSTALLED.search(file))
