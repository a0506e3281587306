"""The content of a tree of boxes, which is complete and has no links.

Node k has the children 2 k and 2 k + 1, and the last level holds the boxes, in the order of `box_order`. So its shape
depends on the number of boxes alone, and a refit is a minimum of pairs for each level.

A CPU searches a second tree over the same order, of blocks of eight boxes, whose leaves are eight items. Block b has
the children 8 b + 1 to 8 b + 8. Coordinates of its boxes lie side by side, so that one vector has all eight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    Bound = Callable[[Callable[[Any], Any]], Any]
    """A function of a box, given by what loads a coordinate of its corners: no value in the box is smaller."""
    Test = Callable[[Any], Any]
    """A function of the number of an item: its value."""

WIDE = 8
"""Boxes of a block, and items of its leaves: the lanes of a vector of 256 bits."""
_RATIO = WIDE.bit_length() - 1
"""Levels of the tree of pairs that a level of blocks spans."""


class Levels(NamedTuple):
    """The nodes of a complete tree, level by level."""

    items: Any
    """The number of the box in each place of the last level, in rows; -1 where it is empty, or there is none."""
    nodes: Any
    """Low and high corners of the box around each node; those of empty ones are infinitely far on all sides."""
    blocks: Any
    """The same of the boxes in each block: low and high corners, one coordinate of all boxes after the other."""

    @property
    def axes(self) -> int:
        """The number of coordinates of a corner."""
        return self.nodes.shape[1] // 2

    @property
    def slots(self) -> int:
        """The number of places in the last level, and of its first node: a power of two."""
        return self.nodes.shape[0] // 2

    @property
    def depth(self) -> tuple[int, int]:
        """The number of levels of blocks, and the number that a block below the last of them would have first."""
        levels, first = 0, 0
        while first < self.blocks.shape[0]:
            levels, first = levels + 1, WIDE * first + 1
        return levels, first

    def item(self, slot: Any) -> Any:
        """Returns the number of the box in a place of the last level."""
        return self.items[slot // WIDE, slot % WIDE]

    def block(self, number: Any, k: Any) -> Callable[[Any], Any]:
        """Returns a function that loads a coordinate of the corners of box `k` of a block."""
        return lambda coordinate: self.blocks[number, coordinate, k]

    def node(self, number: Any) -> Callable[[Any], Any]:
        """Returns a function that loads a coordinate of the corners of a node's box."""
        return lambda coordinate: self.nodes[number, coordinate]

    def square_of(self, box: Callable[[Any], Any], place: Any) -> Any:
        """Returns the squared distance of a place from a box, whose coordinates `box` loads."""
        square = jnp.zeros((), place.dtype)
        for axis in range(self.axes):
            outside = larger(box(axis) - place[axis], place[axis] - box(self.axes + axis))
            square += larger(outside, jnp.zeros_like(outside)) ** 2
        return square


def next_node(node: Any) -> Any:
    """Returns the node behind the subtree of a node in preorder; 0 behind the last one."""
    after = node + 1
    up = after >> zeros_below(after)
    return jnp.where(up == 1, 0, up)


def slots_of(count: int) -> int:
    """Returns the number of places in the last level of a tree over `count` boxes: a power of two."""
    return max(WIDE, 1 << (count - 1).bit_length())


@jax.jit
def levels_of(low: Any, high: Any, order: Any) -> Levels:
    """Returns a complete tree of boxes in an order; without boxes, one that holds no items."""
    count, axes = low.shape
    if not count:
        nodes, blocks = jnp.zeros((2, 2 * axes), low.dtype), jnp.zeros((1, 2 * axes, WIDE), low.dtype)
        return Levels(order.reshape(0, WIDE), nodes, blocks)
    is_box = jnp.all(low <= high, axis=1)[order]
    low = jnp.where(is_box[:, None], low[order], jnp.inf)
    high = jnp.where(is_box[:, None], high[order], -jnp.inf)
    rest = (0, slots_of(count) - count)
    items = jnp.pad(jnp.where(is_box, order, -1), rest, constant_values=-1)
    low, high = _padded(low, rest, np.inf), _padded(high, rest, -np.inf)
    levels = [jnp.concatenate([low, high], axis=1)]
    while low.shape[0] > 1:
        low, high = jnp.minimum(low[::2], low[1::2]), jnp.maximum(high[::2], high[1::2])
        levels.append(jnp.concatenate([low, high], axis=1))
    nodes = jnp.concatenate([levels[-1], *reversed(levels)])  # no node is node 0
    return Levels(items.reshape(-1, WIDE), nodes, _blocks(levels, count))


def _padded(corners: Any, rest: tuple[int, int], far: float) -> Any:
    return jnp.pad(corners, (rest, (0, 0)), constant_values=far)


def _blocks(levels: list[Any], count: int) -> Any:
    """Returns the blocks over `count` items, level by level from the root; all levels but the last one are full."""
    made: list[Any] = []
    height, boxes = _RATIO, -(-count // WIDE)
    while not made or boxes > 1:
        blocks = -(-boxes // WIDE)
        low, high = jnp.split(levels[height][:boxes], 2, axis=1)
        rest = (0, blocks * WIDE - boxes)
        found = jnp.concatenate([_padded(low, rest, np.inf), _padded(high, rest, -np.inf)], axis=1)
        made.append(jnp.swapaxes(found.reshape(blocks, WIDE, -1), 1, 2))
        height, boxes = height + _RATIO, blocks
    last, *inner = made
    full = [jnp.pad(m, ((0, WIDE**k - m.shape[0]), (0, 0), (0, 0))) for k, m in enumerate(reversed(inner))]
    return jnp.concatenate([*full, last])


def zeros_below(value: Any) -> Any:
    """Returns the number of zeros below the lowest one of a positive integer."""
    return jax.lax.population_count((value & -value) - 1)


def smaller(a: Any, b: Any) -> Any:
    """Returns the smaller one of two numbers."""
    return jnp.where(a < b, a, b)  # one instruction: none is NaN


def larger(a: Any, b: Any) -> Any:
    """Returns the larger one of two numbers, none of them NaN."""
    return jnp.where(a > b, a, b)
