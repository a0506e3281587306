"""Arrays of one lane inside of a kernel: in registers as tiles padded to powers of two, or in memory."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton

from qdtrace.frozen import frozen
from qdtrace.groups.work import LEAST, most

if TYPE_CHECKING:
    from collections.abc import Sequence


class RefusedError(Exception):
    """A kernel cannot be made; the text says why."""


@frozen
class Tile:
    """An array in registers."""

    value: Any
    """The array with its sides padded."""
    shape: tuple[int, ...]
    """Its shape without padding."""
    is_zero_outside: bool = False
    """True: the padding holds zeros."""
    is_turned: bool | None = None
    """True: threads hold it as they hold the transpose of what is loaded; None: they may hold it as they want."""
    is_packed: bool = False
    """True: a thread holds neighbouring elements of rows."""


@frozen
class Memory:
    """An array in memory, one behind the other for all lanes."""

    ref: Any
    """A reference to all elements, on one axis."""
    start: Any
    """The position of the first element."""
    shape: tuple[int, ...]
    is_packed: bool = False
    """True: a thread loads neighbouring elements of rows at once."""
    strides: tuple[int, ...] | None = None
    """Distances of elements along each axis; None: they lie behind each other."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Distances of elements along each axis."""
        return self.strides or tuple(prod(self.shape[k + 1 :]) for k in range(len(self.shape)))

    def load(self) -> Tile:
        """Returns the array as a tile."""
        if not self.shape:
            return Tile(triton.load(self.ref.at[self.start]), ())
        inside = mask(self.shape)
        zero = None if inside is None else jnp.zeros((), self.ref.dtype)
        value = triton.load(self.ref.at[self._places()], mask=inside, other=zero)
        return Tile(value, self.shape, True, False, self.is_packed)

    def store(self, tile: Tile) -> None:
        """Stores a tile of the array's shape."""
        if not self.shape:
            triton.store(self.ref.at[self.start], tile.value)
        else:
            triton.store(self.ref.at[self._places()], tile.value, mask=mask(self.shape))

    def row(self, index: Any) -> Memory:
        """Returns an array of the first axis."""
        return Memory(self.ref, self.start + index * prod(self.shape[1:]), self.shape[1:], self.is_packed)

    def _places(self) -> Any:
        places, sides = self.start, padded(self.shape)
        for axis, step in reversed([*enumerate(self.steps)]):
            places += step * lax.broadcasted_iota(jnp.int32, sides, axis)
        return places


def padded(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the sides of the tile of an array. Raises RefusedError if registers do not hold it."""
    if any(n > most() for n in shape) or sum(n > 1 for n in shape) > 2:
        raise RefusedError(f"an array of shape {tuple(shape)}")
    if 0 in shape:
        raise RefusedError("an array without elements")
    return tuple(1 if n == 1 else max(LEAST, 1 << (n - 1).bit_length()) for n in shape)


def mask(shape: Sequence[int], axes: Sequence[int] | None = None) -> Any:
    """Returns a mask of the elements that are in the array, by their places along some axes; None: all are."""
    sides = padded(shape)
    found = None
    for axis in range(len(shape)) if axes is None else axes:
        if sides[axis] != shape[axis]:
            inside = lax.broadcasted_iota(jnp.int32, sides, axis) < shape[axis]
            found = inside if found is None else found & inside
    return found


def filled(tile: Tile, axes: Sequence[int], fill: float = 0) -> Any:
    """Returns the value of a tile with padding along some axes replaced."""
    inside = mask(tile.shape, axes)
    if inside is None or (tile.is_zero_outside and fill == 0):
        return tile.value
    return jnp.where(inside, tile.value, jnp.full((), fill, tile.value.dtype))


def spread(tile: Tile, shape: tuple[int, ...]) -> Any:
    """Returns the value of a tile that has this shape, or is a scalar for all elements."""
    return tile.value if tile.shape == shape else jnp.broadcast_to(tile.value, padded(shape))
