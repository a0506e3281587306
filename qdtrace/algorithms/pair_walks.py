"""The walk of a tree of pairs, for machines whose threads have no vectors of their own.

A walk goes to the nearer child first, and notes in the bits of a number at which levels the other child is left to do.
On the way back the lowest bit says how many levels up that is: a walk has two numbers of state, and no stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.algorithms.levels import larger, smaller, zeros_below
from qdtrace.trace.conditions import when
from qdtrace.trace.local import local
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.loops import while_

if TYPE_CHECKING:
    from qdtrace.algorithms.levels import Bound, Levels, Test


def walk_pairs(tree: Levels, is_any: Any, bound: Bound, test: Test, leaf: int) -> Any:
    """Returns the item with the smallest value, or -1; `leaf` is the number of items that are tested at once."""
    dtype = tree.nodes.dtype
    leaves = tree.slots // leaf
    best, found = local(jnp.asarray(jnp.inf, dtype)), local(jnp.int32(-1))
    node, trail = local(jnp.where(is_any, 1, 0)), local(jnp.int32(0))

    def reach() -> Any:
        return best.value * (1 + 8 * jnp.finfo(dtype).eps)  # a bound and a value may differ by roundings

    for _ in while_(lambda: node.value > 0):
        here = node.value
        is_leaf, is_deeper = here >= leaves, local(False)
        with when(is_leaf):
            first = (here - leaves) * leaf
            for slot in qd_range(first, first + leaf):
                item = tree.item(slot)
                value = test(jnp.maximum(item, 0))
                is_better = (value < best.value) | ((value == best.value) & (item < found.value))
                is_better &= (value >= 0) & (value < jnp.inf) & (item >= 0)
                best.value = jnp.where(is_better, value, best.value)
                found.value = jnp.where(is_better, item, found.value)
        with when(~is_leaf):
            left, right = bound(tree.node(2 * here)), bound(tree.node(2 * here + 1))
            is_right = right < left
            near, far = smaller(left, right), larger(left, right)
            is_deeper.value = (near <= reach()) & (near < jnp.inf)
            with when(is_deeper.value):
                node.value = 2 * here + is_right
                trail.value = 2 * trail.value + ((far <= reach()) & (far < jnp.inf))
        with when(~is_deeper.value):
            rest = trail.value
            up = zeros_below(rest)
            node.value = jnp.where(rest == 0, 0, (here >> up) ^ 1)
            trail.value = (rest >> up) & ~1
    return found.value
