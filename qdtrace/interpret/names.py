"""How errors call memory and its elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.program import Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence


def name_of(ref: Var) -> str:
    """How an error calls a reference."""
    return ref.hint or "_"


def unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The index, one entry an axis, of a flat position."""
    index: list[int] = []
    for n in reversed(shape):
        flat, i = divmod(flat, n)
        index.append(i)
    return tuple(reversed(index))


def element_name(ref: Var, flat: int) -> str:
    """`x[1, 2]`."""
    index = unravel(flat, ref_type(ref).shape)
    return f"`{name_of(ref)}[{', '.join(map(str, index))}]`" if index else f"`{name_of(ref)}`"
