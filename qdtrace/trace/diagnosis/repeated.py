"""Lists of results that have one buffer in all items, where its contents at several moments were meant.

`outs.append(z)` in a loop of Python, in front of a store to z, keeps the handle: all items have the content at the end.
Fewer than three items, other containers and lists of several results may well have a buffer twice: they are not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import warn
from qdtrace.trace.buffers import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.errors import Loc
    from qdtrace.trace.context import TraceContext

_LEAST = 3
"""Fewest items of a list that is told."""


def warn_of_repeated(result: object, context: TraceContext, loc: Loc | None) -> None:
    """Warns of a list of the results all of whose items have a buffer that the function stored into."""
    if context.written and context.watching and _has_one(result, context.written):
        warn(
            "a list of the results has one buffer in all items, and each has what it holds at the end\n"
            "help: keep a copy of each moment: `y.copy()` in place of `y`",
            loc,
        )


def _has_one(node: object, written: set[int]) -> bool:
    """Returns whether a list of several items has one of these buffers in each."""
    parts = _parts(node)
    is_list = isinstance(node, list) and len(parts) >= _LEAST
    if is_list and set.intersection(written, *(set(_buffers(part)) for part in parts)):
        return True
    return any(_has_one(part, written) for part in parts)


def _buffers(node: object) -> Iterator[int]:
    if isinstance(node, Buffer):
        yield id(node.tracer)
    for part in _parts(node):
        yield from _buffers(part)


def _parts(node: object) -> list[object]:
    return list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, (list, tuple)) else []
