"""Numbered places in private memory that keep the state of a loop: its carried values and its private arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import nest
from qdtrace.ir.program import Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom
    from qdtrace.ir.types import DType

_UNROLLED = 4


def each_index(builder: Builder, shape: Sequence[int], visit: Callable[[list[Atom]], None]) -> None:
    """Calls `visit` with every index of an array: in loops, or one by one when there are few."""
    nest(builder, shape, visit, unroll=_UNROLLED, index="at")


def copy_array(
    builder: Builder, source: Var, target: Var, first: Sequence[Atom] = (), into: Sequence[Atom] = ()
) -> None:
    """Emits a copy of an array; `first` and `into` are leading indices of the source and of the target."""
    shape = ref_type(source).shape[len(first) :]
    each_index(builder, shape, lambda at: builder.store(target, builder.load(source, *first, *at), *into, *at))


class Slots:
    """Private memory with `capacity` slots, each of which holds a state."""

    def __init__(
        self,
        make: Callable[[DType, tuple[int, ...]], Var],
        values: Sequence[DType],
        arrays: Sequence[Var],
        capacity: int,
    ) -> None:
        """`make` allocates memory that lives as long as the iteration of the task."""
        self.values = [make(dtype, (capacity,)) for dtype in values]
        self.arrays = list(arrays)
        self.copies = [make(a.dtype, (capacity, *ref_type(a).shape)) for a in arrays]

    def save(self, builder: Builder, slot: Atom, values: Sequence[Atom]) -> None:
        """Saves carried values and the content of the arrays."""
        for ref, value in zip(self.values, values, strict=True):
            builder.store(ref, value, slot)
        for array, copy in zip(self.arrays, self.copies, strict=True):
            copy_array(builder, array, copy, into=[slot])

    def load(self, builder: Builder, slot: Atom) -> list[Atom]:
        """Returns the carried values saved in a slot."""
        return [builder.load(ref, slot) for ref in self.values]

    def restore(self, builder: Builder, slot: Atom) -> None:
        """Restores the content of the arrays saved in a slot."""
        for array, copy in zip(self.arrays, self.copies, strict=True):
            copy_array(builder, copy, array, first=[slot])
