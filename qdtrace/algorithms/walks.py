"""Searches of a tree of boxes: what is closest to a place, and what a ray hits first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.algorithms.block_walks import walk_blocks
from qdtrace.algorithms.levels import larger, smaller
from qdtrace.algorithms.pair_walks import walk_pairs
from qdtrace.backend import walks_in_lanes
from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace.conditions import when
from qdtrace.trace.indexing import as_value, shown
from qdtrace.trace.local import local

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.algorithms.levels import Bound, Levels, Test

LEAF = 4
"""Items that `closest` tests at once, without their boxes. A ray meets few leaves: it tests items one by one."""


def closest(tree: Levels, count: int, place: Any, test: Test) -> tuple[Any, Any]:
    """Returns the item closest to a place, and its squared distance."""
    is_place = jnp.all(jnp.isfinite(place))
    return _walk(tree, count, "boxes.closest", is_place, lambda box: tree.square_of(box, place), test, LEAF)


def first_hit(tree: Levels, count: int, origin: Any, direction: Any, test: Test) -> tuple[Any, Any]:
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

    def entry(box: Callable[[Any], Any]) -> Any:
        enters, leaves = jnp.zeros((), origin.dtype), jnp.asarray(jnp.inf, origin.dtype)
        for axis in range(axes):
            enters = larger(enters, (box(first[axis]) - (origin[axis] + slack[axis])) * inverse[axis])
            leaves = smaller(leaves, (box(last[axis]) - (origin[axis] - slack[axis])) * inverse[axis])
        return jnp.where(enters <= leaves, enters, jnp.inf)

    is_ray = jnp.all(jnp.isfinite(origin)) & jnp.all(jnp.isfinite(direction))
    return _walk(tree, count, "boxes.ray", is_ray, entry, test, 1)


def _walk(tree: Levels, count: int, what: str, is_any: Any, bound: Bound, test: Test, leaf: int) -> Any:
    """Returns the item with the smallest value, and that; `bound` gives no more than any value in a box."""
    if not callable(test):
        raise TraceTypeError.here(
            f"{what} needs a function of the number of an item, got {shown(test)}",
            help="give one that computes its value: `lambda j: jnp.sum((x[j] - p) ** 2)`",
        )
    dtype = tree.nodes.dtype
    nothing = jnp.asarray(jnp.inf, dtype)
    if not tree.items.shape[0]:
        return jnp.int32(-1), nothing
    found, value = local(jnp.int32(-1)), local(nothing)
    in_blocks = not walks_in_lanes()  # those walk through pairs
    is_narrow = jax.lax.platform_dependent(cpu=lambda: np.bool_(in_blocks), default=lambda: np.False_)

    def tested(item: Any) -> Any:
        return jax.lax.stop_gradient(_value(test, item, what, dtype))

    with when(is_narrow):
        found.value = walk_blocks(tree, count, is_any, bound, tested)
    with when(~is_narrow):
        found.value = walk_pairs(tree, is_any, bound, tested, leaf)
    index = found.value
    with when(index >= 0):  # where nothing is found, no derivative of `test` is taken either
        value.value = _value(test, index, what, dtype)
    return index, value.value


def _value(test: Test, item: Any, what: str, dtype: Any) -> Any:
    value = as_value(test(item))
    if value is None or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        help = "return a number" if value is None else "convert it: `.astype(jnp.float32)`"
        raise TraceTypeError.here(f"{what} needs a test that gives a float, got {shown(value)}", help=help)
    if jnp.shape(value):
        raise TraceValueError.here(
            f"{what} needs a test that gives a number, got shape {jnp.shape(value)}", help="reduce it: `jnp.sum(v)`"
        )
    return jnp.asarray(value, dtype)
