"""Says of each operand of the innermost function of nested `qd.vmap`s which lanes differ in it, and by which axes.

A source is a leaf of the arguments of one mapped function, or a value that all of its lanes see, with the level that
maps each axis. Functions around others translate it: a `qd.vmap` of a `qd.vmap` adds a level, and a function that only
calls one says what its arguments were.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.buffers import Buffer
from qdtrace.trace.handles import MemoryHandle

if TYPE_CHECKING:
    from collections.abc import Sequence


@frozen(eq=False)
class Source:
    """The origin of an operand."""

    at: tuple[int | None, ...]
    """The number of the level that maps each axis; None: the operand has it."""
    leaf: int | None = None
    """Number of a leaf of the arguments, of which it is a part; None: of `value`."""
    value: Any = None


def of_element(leaves: Sequence[Any], constants: Sequence[Any]) -> list[Source]:
    """Returns the operands of a function that is no `qd.vmap`: its arguments, and then what it captured."""
    own = [Source(_whole(x), leaf=k) for k, x in enumerate(leaves)]
    return [*own, *(Source(_whole(x), value=x) for x in constants)]


def of_mapped(sources: Sequence[Source | None], axes: Sequence[int | None]) -> list[Source | None]:
    """Returns the operands as parts of the arguments of a `qd.vmap`, which maps the leaves along these axes."""
    return [None if s is None else _mapped(s, None if s.leaf is None else axes[s.leaf]) for s in sources]


def of_caller(sources: Sequence[Source | None], given: Sequence[Any], own: Sequence[Any]) -> list[Source | None]:
    """Returns the operands as parts of the arguments of a function that calls a `qd.vmap`; None for computed ones.

    Args:
        sources: the operands as parts of the leaves that the function gives to the `qd.vmap`.
        given: these leaves.
        own: the leaves of the function's own arguments, in its trace.
    """
    numbers = {id(x): k for k, x in enumerate(own)}
    found: list[Source | None] = []
    for s in sources:
        value = None if s is None else s.value if s.leaf is None else given[s.leaf]
        if s is not None and id(value) in numbers:
            found.append(Source(s.at, leaf=numbers[id(value)]))
        elif s is None or _is_made_here(value):
            found.append(None)
        else:
            found.append(Source(s.at, value=value))
    return found


def _mapped(source: Source, axis: int | None) -> Source:
    at = tuple(None if k is None else k + 1 for k in source.at)
    if axis is not None:
        axis %= len(at) + 1
        at = (*at[:axis], 0, *at[axis:])
    return Source(at, source.leaf, source.value)


def _is_made_here(value: Any) -> bool:
    """Returns whether the function that is traced has made a value, or memory."""
    if isinstance(value, MemoryHandle):
        return not isinstance(value, Buffer) or compat.trace_of(value.tracer) is compat.current_trace()
    return compat.trace_of(value) is compat.current_trace()


def _whole(x: Any) -> tuple[None, ...]:
    return (None,) * getattr(x, "ndim", 0)
