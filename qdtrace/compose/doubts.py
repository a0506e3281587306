"""Updates that are lost if an argument holds equal indices: told by the first call that brings the argument's elements.

A function is traced on arrays without elements, so `h[k[i]] = h[k[i]] + v` is right or not by what a call hands over.
Each call of a `qd.jit` function with arrays looks once at what its trace left open; what others trace, it does not see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from qdtrace.errors import Loc, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST = 1 << 20
"""Largest number of elements that are looked at."""


class Doubt(NamedTuple):
    """A warning that is due if two elements of an array are equal."""

    text: str
    loc: Loc | None
    place: tuple[int | slice, ...]
    """Indices of the elements that count."""
    shape: tuple[int, ...]

    def tell(self, array: Any) -> None:
        """Warns if two elements are equal."""
        held = np.asarray(array)[self.place].reshape(-1)[:MOST]
        if len(np.unique(held)) < len(held):
            warn(self.text, self.loc)


def settled(
    doubts: Sequence[tuple[int, Doubt]], arguments: Any
) -> tuple[list[tuple[int, Doubt]], list[tuple[Doubt, Any]]]:
    """Returns the doubts that remain, each with the number of an argument's leaf, and those that a call decides."""
    leaves = jax.tree.leaves(arguments)
    waiting: list[tuple[int, Doubt]] = []
    due: list[tuple[Doubt, Any]] = []
    for number, doubt in doubts:
        array: Any = leaves[number] if number < len(leaves) else ()
        if isinstance(array, Tracer) or np.shape(array) != doubt.shape or not _is_readable(array):
            waiting.append((number, doubt))
        else:
            due.append((doubt, array))
    return waiting, due


def _is_readable(array: Any) -> bool:
    return not isinstance(array, jax.Array) or (not array.is_deleted() and array.is_fully_addressable)
