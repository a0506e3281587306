"""Elements that are joined in loops: one for each element of a large array, or one for all elements of a small one."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from qdtrace.trace.importer.memory import UNROLL
from qdtrace.trace.importer.values import Value, array_of, parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from qdtrace.ir.program import Atom
    from qdtrace.ir.types import DType
    from qdtrace.trace.importer.memory import MemoryOps
    from qdtrace.trace.importer.values import Element

    Join = Callable[[Sequence[Atom], Sequence[Atom], Any], Element]
    """Function of an index of the result, an index of what is joined, and what has been joined so far."""


def folded(
    imp: MemoryOps,
    shape: Sequence[int],
    dtype: DType,
    inner: Sequence[int],
    start: Element,
    join: Join,
    *,
    adjoining: bool = False,
) -> Value:
    """Returns the array whose elements begin at `start` and are joined over all indices of the shape `inner`.

    Few elements share a loop: its operands are read once for all of them, and no element waits for another one. Where
    an iteration computes on rows (`MemoryOps.few`), they are in memory for what follows, and a loop over elements whose
    operands are `adjoining` has them as lanes.
    """
    is_few = prod(shape) <= imp.few
    if not 1 < prod(shape) <= UNROLL or (not is_few and adjoining):

        def one(index: Sequence[Atom]) -> Element:
            return fold_loop(imp, inner, [start], lambda k, so_far: [join(index, k, so_far[0])])[0]

        return imp.build(shape, dtype, one, type(start) is tuple)
    indices = [[imp.index(i) for i in index] for index in np.ndindex(*shape)]

    def side_by_side(k: Sequence[Atom], so_far: Sequence[Element]) -> list[Element]:
        return [join(index, k, element) for index, element in zip(indices, so_far, strict=True)]

    made = array_of(fold_loop(imp, inner, [start] * len(indices), side_by_side), shape)
    return made if is_few else imp.spill(made)


def fold_loop(
    imp: MemoryOps,
    shape: Sequence[int],
    start: Sequence[Element],
    body: Callable[[list[Atom], Sequence[Any]], Sequence[Element]],
) -> Sequence[Any]:
    """Carries elements through a loop nest, and returns the last ones."""
    pair = type(start[0]) is tuple

    def level(axis: int, index: list[Atom], carried: Sequence[Element]) -> Sequence[Element]:
        if axis == len(shape):
            return body(index, carried)
        if shape[axis] == 1:
            return level(axis + 1, [*index, imp.index(0)], carried)

        def step(k: Atom, parts: list[Atom]) -> list[Atom]:
            return _parts(level(axis + 1, [*index, k], _elements(parts, pair)))

        return _elements(imp.carry_loop(shape[axis], _parts(carried), step), pair)

    return level(0, [], start)


def _parts(elements: Sequence[Element]) -> list[Atom]:
    """Returns the atoms of elements."""
    return [part for e in elements for part in parts_of(e)]


def _elements(parts: Sequence[Atom], pair: bool) -> list[Element]:
    return list(zip(parts[::2], parts[1::2], strict=True)) if pair else list(parts)
