"""The content of a tree of boxes, which is complete and has no links.

Node k has the children 2 k and 2 k + 1, and the last level holds the boxes, in the order of a space-filling curve. So
its shape depends on the number of boxes alone, and a refit is a minimum of pairs for each level.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_BITS = {1: 30, 2: 15, 3: 10}
"""Bits of a coordinate in a place on the curve."""
_SPREAD = {
    1: (),
    2: ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)),
    3: ((16, 0x030000FF), (8, 0x0300F00F), (4, 0x030C30C3), (2, 0x09249249)),
}
"""Shifts and masks that move the bits of a coordinate apart."""


class Levels(NamedTuple):
    """The nodes of a complete tree, level by level."""

    items: Any
    """The number of the box in each place of the last level; -1 where it is empty, or there is none."""
    nodes: Any
    """Low and high corners of the box around each node; those of empty ones are infinitely far on all sides."""

    @property
    def axes(self) -> int:
        """The number of coordinates of a corner."""
        return self.nodes.shape[1] // 2

    @property
    def slots(self) -> int:
        """The number of places in the last level, and of its first node: a power of two."""
        return self.nodes.shape[0] // 2

    def square_of(self, node: Any, place: Any) -> Any:
        """Returns the squared distance of a place from the box of a node."""
        square = jnp.zeros((), place.dtype)
        for axis in range(self.axes):
            below = self.nodes[node, axis] - place[axis]
            above = place[axis] - self.nodes[node, self.axes + axis]
            outside = larger(below, above)
            square += larger(outside, jnp.zeros_like(outside)) ** 2
        return square


def next_node(node: Any) -> Any:
    """Returns the node behind the subtree of a node in preorder; 0 behind the last one."""
    after = node + 1
    up = after >> zeros_below(after)
    return jnp.where(up == 1, 0, up)


@jax.jit
def places_of(low: Any, high: Any) -> Any:
    """Returns the places of the centres of boxes on a space-filling curve (Morton's), i32 of 30 bits."""
    centre = low / 2 + high / 2
    is_placed = jnp.isfinite(centre) & (low <= high)
    first = jnp.min(jnp.where(is_placed, centre, jnp.inf), axis=0, initial=jnp.inf)
    last = jnp.max(jnp.where(is_placed, centre, -jnp.inf), axis=0, initial=-jnp.inf)
    half = jnp.where(last > first, last / 2 - first / 2, 1)  # a half, as the whole may overflow
    part = jnp.where(is_placed, (centre / 2 - first / 2) / half, 0)
    cells = 2 ** _BITS[low.shape[1]]
    return _interleaved(jnp.clip(part * cells, 0, cells - 1).astype(jnp.int32))


def _interleaved(cell: Any) -> Any:
    """Returns places on the curve: the bits of coordinates in turn."""
    axes = cell.shape[1]
    for shift, mask in _SPREAD[axes]:
        cell = (cell | (cell << shift)) & mask
    return jnp.sum(cell << jnp.arange(axes, dtype=jnp.int32), axis=1, dtype=jnp.int32)


@jax.jit
def levels_of(low: Any, high: Any, order: Any) -> Levels:
    """Returns a complete tree of boxes in an order; without boxes, one that holds no items."""
    count, axes = low.shape
    if not count:
        return Levels(order, jnp.zeros((2, 2 * axes), low.dtype))
    is_box = jnp.all(low <= high, axis=1)[order]
    low = jnp.where(is_box[:, None], low[order], jnp.inf)
    high = jnp.where(is_box[:, None], high[order], -jnp.inf)
    rest = (0, (1 << (count - 1).bit_length()) - count)
    items = jnp.pad(jnp.where(is_box, order, -1), rest, constant_values=-1)
    low, high = (
        jnp.pad(corner, (rest, (0, 0)), constant_values=far) for corner, far in ((low, np.inf), (high, -np.inf))
    )
    levels = [jnp.concatenate([low, high], axis=1)]
    while low.shape[0] > 1:
        low, high = jnp.minimum(low[::2], low[1::2]), jnp.maximum(high[::2], high[1::2])
        levels.append(jnp.concatenate([low, high], axis=1))
    return Levels(items, jnp.concatenate([levels[-1], *reversed(levels)]))  # no node is node 0


def zeros_below(value: Any) -> Any:
    """Returns the number of zeros below the lowest one of a positive integer."""
    return jax.lax.population_count((value & -value) - 1)


def smaller(a: Any, b: Any) -> Any:
    """Returns the smaller one of two numbers."""
    return jnp.where(a < b, a, b)  # one instruction: none is NaN


def larger(a: Any, b: Any) -> Any:
    """Returns the larger one of two numbers, none of them NaN."""
    return jnp.where(a > b, a, b)
