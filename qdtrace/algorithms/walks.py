"""Walks of a tree of boxes: what is closest to a place, and what a ray hits first.

A walk goes to the nearer child first, and notes in the bits of a number at which levels the other child is left to do.
On the way back the lowest bit says how many levels up that is: a walk has two numbers of state, and no stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.algorithms.levels import larger, smaller, zeros_below
from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace.cells import local
from qdtrace.trace.conditions import when
from qdtrace.trace.indexing import as_value, shown
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.loops import while_

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.algorithms.levels import Levels

LEAF = 4
"""Items that `closest` tests at once, without their boxes. A ray meets few leaves: it tests items one by one."""


def closest(tree: Levels, place: Any, test: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Returns the item closest to a place, and its squared distance."""
    is_place = jnp.all(jnp.isfinite(place))
    return _walk(tree, "boxes.closest", is_place, lambda node: tree.square_of(node, place), test, LEAF)


def first_hit(tree: Levels, origin: Any, direction: Any, test: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Returns the item that a ray hits first, and the parameter there."""
    info, axes = jnp.finfo(origin.dtype), tree.axes
    is_down = [direction[axis] < 0 for axis in range(axes)]
    # A side that the ray is parallel to is passed at once, or far away; products with it are never NaN.
    size = [jnp.clip(1 / jnp.abs(direction[axis]), info.tiny, info.max) for axis in range(axes)]
    size = [jnp.where(direction[axis] == 0, info.max, size[axis]) for axis in range(axes)]
    inverse = [jnp.where(is_down[axis], -size[axis], size[axis]) for axis in range(axes)]
    # Boxes are a few roundings larger: a hit may be in a side of its box.
    widest = [larger(jnp.abs(tree.nodes[1, axis]), jnp.abs(tree.nodes[1, axes + axis])) for axis in range(axes)]
    widest = [jnp.where(w < jnp.inf, w, 0) for w in widest]
    slack = [8 * info.eps * (jnp.abs(origin[axis]) + widest[axis]) + info.tiny for axis in range(axes)]
    slack = [jnp.where(is_down[axis], -slack[axis], slack[axis]) for axis in range(axes)]
    # By its sign a direction tells which side comes first, so an empty box is entered last.
    first = [jnp.where(is_down[axis], axes + axis, axis) for axis in range(axes)]
    last = [jnp.where(is_down[axis], axis, axes + axis) for axis in range(axes)]

    def entry(node: Any) -> Any:
        enters, leaves = jnp.zeros((), origin.dtype), jnp.asarray(jnp.inf, origin.dtype)
        for axis in range(axes):
            enters = larger(enters, (tree.nodes[node, first[axis]] - (origin[axis] + slack[axis])) * inverse[axis])
            leaves = smaller(leaves, (tree.nodes[node, last[axis]] - (origin[axis] - slack[axis])) * inverse[axis])
        return jnp.where(enters <= leaves, enters, jnp.inf)

    is_ray = jnp.all(jnp.isfinite(origin)) & jnp.all(jnp.isfinite(direction))
    return _walk(tree, "boxes.ray", is_ray, entry, test, 1)


def _walk(
    tree: Levels, what: str, is_any: Any, bound: Callable[[Any], Any], test: Callable[[Any], Any], leaf: int
) -> Any:
    """Returns the item with the smallest value, and that; `bound` gives no more than any value in a node."""
    if not callable(test):
        raise TraceTypeError.here(f"{what} needs a function of the number of an item, got {shown(test)}")
    dtype = tree.nodes.dtype
    nothing = jnp.asarray(jnp.inf, dtype)
    if not tree.items.shape[0]:
        return jnp.int32(-1), nothing
    leaf = min(leaf, tree.slots)
    leaves = tree.slots // leaf
    best, found = local(nothing), local(jnp.int32(-1))
    node, trail = local(jnp.where(is_any, 1, 0)), local(jnp.int32(0))

    def reach() -> Any:
        return best.value * (1 + 8 * jnp.finfo(dtype).eps)  # a bound and a value may differ by roundings

    for _ in while_(lambda: node.value > 0):
        here = node.value
        is_leaf, is_deeper = here >= leaves, local(False)
        with when(is_leaf):
            first = (here - leaves) * leaf
            for slot in qd_range(first, first + leaf):
                item = tree.items[slot]
                value = jax.lax.stop_gradient(_value(test, jnp.maximum(item, 0), what, dtype))
                is_better = (value < best.value) | ((value == best.value) & (item < found.value))
                is_better &= (value >= 0) & (value < jnp.inf) & (item >= 0)
                best.value = jnp.where(is_better, value, best.value)
                found.value = jnp.where(is_better, item, found.value)
        with when(~is_leaf):
            left, right = bound(2 * here), bound(2 * here + 1)
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
    index, value = found.value, local(nothing)
    with when(index >= 0):  # where nothing is found, no derivative of `test` is taken either
        value.value = _value(test, index, what, dtype)
    return index, value.value


def _value(test: Callable[[Any], Any], item: Any, what: str, dtype: Any) -> Any:
    value = as_value(test(item))
    if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise TraceTypeError.here(f"{what} needs a test that gives a float, got {shown(value)}")
    if jnp.shape(value):
        raise TraceValueError.here(f"{what} needs a test that gives a number, got shape {jnp.shape(value)}")
    return jnp.asarray(value, dtype)
