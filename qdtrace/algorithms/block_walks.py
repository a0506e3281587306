"""The walk of a tree of blocks, for a CPU: vectors are the boxes of a block and the items of a leaf.

A box has a key, which orders as its bound does: the bound's bits, of which the lowest three are the number of the box.
A walk keeps the keys of the blocks on the way to where it is, and of each block the key that it took last. The smallest
one behind that is next, until none of a block is below the best value: so it goes to the nearest box first, and there
is nothing to sort or to push.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.algorithms.levels import WIDE
from qdtrace.trace.conditions import when
from qdtrace.trace.local import local
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.loops import while_

if TYPE_CHECKING:
    from qdtrace.algorithms.levels import Bound, Levels, Test


def walk_blocks(tree: Levels, count: int, is_any: Any, bound: Bound, test: Test) -> Any:
    """Returns the item with the smallest value, or -1; there are `count`."""
    dtype = tree.nodes.dtype
    bits = jnp.int64 if dtype == jnp.float64 else jnp.int32
    floats = jnp.float64 if dtype == jnp.float64 else jnp.float32

    def ordered(value: Any) -> Any:
        """Returns bits that order as numbers that are not negative do; zeros of both signs are equal."""
        return jax.lax.bitcast_convert_type(jnp.abs(value).astype(floats), bits)

    infinity = ordered(jnp.asarray(jnp.inf, floats))
    most, number = infinity - 1, bits(WIDE - 1)  # a key of infinity is not below `most`
    levels, first_leaf = tree.depth
    best, found, limit = local(infinity), local(jnp.int32(-1)), local(most)
    keys, last = local(jnp.zeros(levels * WIDE, bits)), local(jnp.zeros(levels, bits))
    values = local(jnp.zeros(WIDE, bits))
    block, level = local(jnp.int32(0)), local(jnp.where(is_any, 0, -1))

    def enter(block: Any, level: Any) -> None:
        last[level] = bits(-1)
        for k in qd_range(WIDE, unroll=False):
            near = ordered(bound(tree.block(block, k)))
            keys[level * WIDE + k] = (near & ~number) | k

    enter(block.value, 0)
    for _ in while_(lambda: level.value >= 0):
        here, at = block.value, level.value
        before, least = last[at], local(infinity)
        for k in qd_range(WIDE, unroll=False):
            key = keys[at * WIDE + k]
            least.value = jnp.minimum(least.value, jnp.where(key > before, key, infinity))
        is_near, child = least.value <= limit.value, WIDE * here + 1 + (least.value & number).astype(jnp.int32)
        with when(~is_near):
            block.value, level.value = (here - 1) // WIDE, at - 1
        with when(is_near):
            last[at] = least.value
            with when(child < first_leaf):
                block.value, level.value = child, at + 1
                enter(child, at + 1)
            with when(child >= first_leaf):
                nearest, item = local(infinity), local(jnp.iinfo(jnp.int32).max)
                leaf = child - first_leaf
                for k in qd_range(WIDE, unroll=False):
                    held = tree.items[leaf, k]
                    value = test(jnp.clip(held, 0, count - 1))
                    value = jnp.where((value >= 0) & (held >= 0), value, jnp.inf)
                    values[k] = ordered(value)
                    nearest.value = jnp.minimum(nearest.value, values[k])
                for k in qd_range(WIDE, unroll=False):
                    held = jnp.where(values[k] == nearest.value, tree.items[leaf, k], jnp.iinfo(jnp.int32).max)
                    item.value = jnp.minimum(item.value, held)
                is_better = nearest.value < best.value
                is_better |= (nearest.value == best.value) & (item.value < found.value)
                best.value = jnp.where(is_better, nearest.value, best.value)
                found.value = jnp.where(is_better, item.value, found.value)
                reach = jax.lax.bitcast_convert_type(best.value, floats) * (1 + 8 * jnp.finfo(dtype).eps)
                limit.value = jnp.minimum(ordered(reach) | number, most)
    return found.value
