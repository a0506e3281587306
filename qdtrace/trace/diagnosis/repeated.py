"""Results that have one buffer several times, where its contents at several moments were meant.

`outs.append(z)` in front of a store to z keeps the handle: all items have the content at the end. A tuple may well have
a buffer twice, as the new state and what a step of `lax.scan` gives; a list or a dict that does so is told.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, cast

from qdtrace.errors import warn
from qdtrace.trace.buffers import Buffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.errors import Loc
    from qdtrace.trace.context import TraceContext


def warn_of_repeated(result: Any, context: TraceContext, loc: Loc | None) -> None:
    """Warns of the first list or dict of the results that has a buffer twice which the function stored into."""
    if context.written and context.watching:
        found = next(_repeated(result, context.written), None)
        if found is not None:
            warn(
                f"a {found} of the results has one buffer several times, and each has what it holds at the end\n"
                "help: keep a copy of each moment: `y.copy()` in place of `y`",
                loc,
            )


def _repeated(node: Any, written: set[int]) -> Iterator[str]:
    """Yields what kind of container has a buffer twice, for each that does."""
    for part in _parts(node):
        yield from _repeated(part, written)
    if isinstance(node, (list, dict)):
        below = Counter(b for part in _parts(cast("object", node)) for b in set(_buffers(part)))
        if any(count > 1 and buffer in written for buffer, count in below.items()):
            yield type(cast("object", node)).__name__


def _buffers(node: Any) -> Iterator[int]:
    if isinstance(node, Buffer):
        yield id(node.tracer)
    for part in _parts(node):
        yield from _buffers(part)


def _parts(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else list(node) if isinstance(node, (list, tuple)) else []
