"""Arrays with sides too long for one tile: tiles side by side, each made when a rule asks for it first."""

from __future__ import annotations

from dataclasses import field
from itertools import product
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.groups.tiles import Memory, RefusedError, Tile
from qdtrace.groups.work import most

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Place = tuple[int, ...]

ALONG = 2
"""The most blocks along an axis: what a factorisation holds of a larger matrix spills."""


@frozen
class Blocks:
    """An array as blocks, each of at most as many elements along an axis as a tile has."""

    shape: tuple[int, ...]
    make: Callable[[Place], Tile]
    """Returns the block at a place."""
    _made: dict[Place, Tile] = field(default_factory=dict[tuple[int, ...], Tile])

    def at(self, place: Place) -> Tile:
        """Returns the block at a place, one number for each axis; those of one element, and scalars, have one block."""
        place = tuple(k if n > 1 else 0 for n, k in zip(self.shape, place, strict=False))
        if place not in self._made:
            self._made[place] = self.make(place)
        return self._made[place]


def is_large(shape: Sequence[int]) -> bool:
    """Returns whether an array is made of blocks."""
    return any(n > most() for n in shape)


def places(shape: Sequence[int]) -> Iterator[Place]:
    """Yields the places of the blocks of an array. Raises RefusedError for an array that is too large."""
    if max(shape) > ALONG * most() or sum(n > 1 for n in shape) > 2:
        raise RefusedError(f"an array of shape {tuple(shape)}")
    yield from product(*(range(-(-n // most())) for n in shape))


def shape_of(shape: Sequence[int], place: Place) -> tuple[int, ...]:
    """Returns the shape of the block at a place."""
    return tuple(min(most(), n - k * most()) for n, k in zip(shape, place, strict=True))


def blocks_of(value: Tile | Memory | Blocks) -> Blocks:
    """Returns any array as blocks; a scalar is all of them."""
    if isinstance(value, Blocks):
        return value
    if isinstance(value, Tile):
        return Blocks(value.shape, lambda _: value)
    return Blocks(value.shape, lambda place: block_in(value, place).load())


def block_in(memory: Memory, place: Place) -> Memory:
    """Returns the memory of the block at a place."""
    steps = memory.steps
    start = memory.start + sum(most() * k * step for k, step in zip(place, steps, strict=True))
    return Memory(memory.ref, start, shape_of(memory.shape, place), memory.is_packed, steps)
