"""Names of memory and its elements in errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.program import Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence


def name_of(ref: Var) -> str:
    """Returns the name of a reference in an error."""
    return ref.hint or "_"


def unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the index, one entry per axis, of a flat position."""
    index: list[int] = []
    for n in reversed(shape):
        flat, i = divmod(flat, n)
        index.append(i)
    return tuple(reversed(index))


def element_name(ref: Var, flat: int) -> str:
    """Returns the name of an element in an error: `x[1, 2]`."""
    index = unravel(flat, ref_type(ref).shape)
    return f"`{name_of(ref)}[{', '.join(map(str, index))}]`" if index else f"`{name_of(ref)}`"
