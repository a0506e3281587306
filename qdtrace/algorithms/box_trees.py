"""`qd.boxes`: a tree of boxes, and the walks of it (docs/design/0069-trees-of-boxes.md).

What a tree holds is in `levels`, how it is searched for the closest item and along a ray in `walks`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.algorithms.box_order import order_of
from qdtrace.algorithms.levels import Levels, levels_of, next_node
from qdtrace.algorithms.near_loops import NearLoop, check_in_loop, positions_of
from qdtrace.algorithms.walks import closest, first_hit
from qdtrace.errors import TraceValueError, boundary, user_loc
from qdtrace.trace import markers
from qdtrace.trace.arguments import as_values
from qdtrace.trace.context import emit
from qdtrace.trace.local import local
from qdtrace.trace.loops import while_

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jax.typing import ArrayLike

_NAME = "boxes.near"


class NearBoxes(NearLoop):
    """The loop of `Boxes.near`."""

    def __init__(self, tree: Boxes, place: Any, radius: Any) -> None:
        super().__init__(_NAME, "for j in tree.near(p, radius):", place, radius)
        self._tree = tree

    def _trace(self) -> Iterator[jax.Array]:
        levels, place = self._tree.levels, self.place
        radius = jax.lax.stop_gradient(jnp.asarray(self.radius, levels.nodes.dtype))
        if not self._tree.count:
            return
        most = jnp.where(radius >= 0, radius * radius, -1)
        is_place = jnp.all(jnp.isfinite(place)) & (most >= 0)
        node = local(jnp.where(is_place, 1, 0))
        loop = while_(lambda: node.value > 0)
        loop.use.is_made = True
        for _ in loop._trace_body(in_kernel=False):  # pyright: ignore[reportPrivateUsage]
            here = node.value
            square = levels.square_of(levels.node(here), place)
            is_near = (square <= most) & (square < jnp.inf)
            is_box = here >= levels.slots
            node.value = jnp.where(is_near & ~is_box, 2 * here, next_node(here))
            emit(markers.continue_p, ~(is_near & is_box), loc=user_loc())
            yield levels.item(here - levels.slots)


@jax.tree_util.register_pytree_node_class
class Boxes:
    """A tree of boxes, made by `qd.boxes`; a pytree.

    >>> x = jnp.array([[0.0, 0.0], [5.0, 5.0], [0.5, 0.0]])
    >>> tree = qd.boxes(x, x + 1)
    >>> isinstance(tree, qd.Boxes), tree.count, tree.axes
    (True, 3, 2)
    """

    def __init__(self, order: Any, levels: Levels) -> None:
        self.order: Any = order
        """The number of each box, in the order of the last level."""
        self.levels = levels
        """The boxes around them, and around those."""

    def tree_flatten(self) -> tuple[tuple[Any, Levels], None]:
        """Returns the arrays."""
        return (self.order, self.levels), None

    @classmethod
    def tree_unflatten(cls, _: None, arrays: tuple[Any, Levels]) -> Boxes:
        """Returns a tree of the arrays."""
        return cls(*arrays)

    @property
    def count(self) -> int:
        """The number of boxes."""
        return self.order.shape[0]

    @property
    def axes(self) -> int:
        """The number of coordinates of a corner."""
        return self.levels.axes

    @boundary
    def refit(self, low: Any, high: Any) -> Boxes:
        """Returns a tree of the same order around boxes that have moved: fast where they moved little, right anywhere.

        >>> x = jnp.array([[0.0, 0.0], [5.0, 5.0]])
        >>> qd.boxes(x, x + 1).refit(x + 0.1, x + 1.1).count
        2

        Args:
            low, high: corners, as `qd.boxes` takes them, of as many boxes.

        Raises:
            TraceTypeError: corners are no floats.
            TraceValueError: corners have another shape.
        """
        low, high = _corners(low, high, "boxes.refit")
        if low.shape != (self.count, self.axes):
            raise TraceValueError.here(
                f"boxes.refit needs corners of shape {(self.count, self.axes)}, got {low.shape}",
                help="make a new tree by `qd.boxes(low, high)`",
            )
        order = as_values(self.order)
        return Boxes(order, levels_of(low, high, order))

    @boundary
    def near(self, place: ArrayLike, radius: ArrayLike) -> NearBoxes:
        """Returns a loop over the boxes at most `radius` away from a place: `for j in tree.near(p, r):`.

        It is a loop of the thread, whose body may use `qd.when`, `qd.break_if`, `qd.continue_if`, cells and buffers.
        `j` is the number of a box, in the order of the tree: the same in every run. A place in a box is 0 away.
        Which boxes are near has no derivative; what the body computes has.

        >>> @qd.jit
        ... def touching(tree, places):
        ...     count = qd.zeros(places.shape[0], jnp.int32)
        ...     for i in qd.range(places.shape[0]):
        ...         for j in tree.near(places[i], 0.5):
        ...             count[i] += 1
        ...     return count
        >>> low = jnp.array([[0.0], [2.0], [9.0]])
        >>> touching(qd.boxes(low, low + 1), jnp.array([[1.5], [8.0]]))
        Array([2, 0], dtype=int32)

        Args:
            place: as many coordinates as a corner has.
            radius: a number. Nothing is near within a negative radius or NaN, nor is anything near a place that is not
                finite, or where the squared distance is not.

        Raises:
            TraceValueError: `place` has another shape, or the loop stands outside of loops.
        """
        return NearBoxes(self, _row(self, place, _NAME, "place"), radius)

    @boundary
    def closest(self, place: ArrayLike, test: Callable[[jax.Array], ArrayLike]) -> tuple[jax.Array, jax.Array]:
        """Returns the number of what is closest to a place, and its squared distance: `j, s = tree.closest(p, test)`.

        >>> @qd.jit
        ... def nearest(x, queries):
        ...     tree, out = qd.boxes(x, x), qd.zeros(queries.shape[0], jnp.int32)
        ...     for i in qd.range(queries.shape[0]):
        ...         p = queries[i]
        ...         out[i], _ = tree.closest(p, lambda j: jnp.sum((x[j] - p) ** 2))
        ...     return out
        >>> nearest(jnp.array([[0.0, 0.0], [5.0, 5.0]]), jnp.array([[4.0, 4.0], [-1.0, 0.0]]))
        Array([1, 0], dtype=int32)

        Of equal ones it is that with the smallest number. The derivative is that of `test(j)` for the `j` that is
        found.

        Args:
            place: as many coordinates as a corner has.
            test: gives the squared distance of the place from item `j`, no less than that from its box, up to a few
                roundings. It is traced twice. NaN and infinity are no distance, nor has a place that is not finite any.

        Returns `(-1, inf)` where nothing has a distance.

        Raises:
            TraceTypeError: `test` is no function, or gives no float.
            TraceValueError: `place` has another shape, `test` gives an array, or the call stands outside of loops.
        """
        check_in_loop("boxes.closest")
        return closest(self.levels, self.count, _row(self, place, "boxes.closest", "place"), test)

    @boundary
    def ray(
        self, origin: ArrayLike, direction: ArrayLike, test: Callable[[jax.Array], ArrayLike]
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the number of what a ray hits first, and the parameter there: `j, t = tree.ray(o, d, test)`.

        A point of the ray is `origin + t * direction`, t from 0. The direction has any length, and may be 0 along some
        axes, or all. Of equal parameters it is the item with the smallest number. The derivative is that of `test(j)`
        for the `j` that is found.

        >>> @qd.jit
        ... def heights(tree, level, places):
        ...     out, down = qd.empty(places.shape[0]), jnp.array([0.0, -1.0])
        ...     for i in qd.range(places.shape[0]):
        ...         _, out[i] = tree.ray(places[i], down, lambda j: places[i, 1] - level[j])
        ...     return out
        >>> low = jnp.array([[0.0, 1.0], [0.0, 2.0]])  # two level lines, 3 long
        >>> tree = qd.boxes(low, low + jnp.array([3.0, 0.0]))
        >>> heights(tree, low[:, 1], jnp.array([[1.0, 5.0], [1.0, 1.5], [4.0, 5.0]])).tolist()
        [3.0, 0.5, inf]

        Args:
            origin, direction: as many coordinates as a corner has. A ray that is not finite hits nothing.
            test: gives the parameter at which the ray hits item `j`, within its box up to a few roundings; infinity,
                NaN or a negative one for none. It is traced twice.

        Returns `(-1, inf)` where nothing is hit.

        Raises:
            TraceTypeError: `test` is no function, or gives no float.
            TraceValueError: `origin` or `direction` has another shape, `test` gives an array, or the call stands
                outside of loops.
        """
        check_in_loop("boxes.ray")
        start, along = _row(self, origin, "boxes.ray", "origin"), _row(self, direction, "boxes.ray", "direction")
        return first_hit(self.levels, self.count, start, along, test)


@boundary
def boxes(low: Any, high: Any) -> Boxes:
    """Returns a tree of boxes with sides along the axes, which loops search: a bounding volume hierarchy.

    Made once, it serves any number of loops: `for j in tree.near(p, radius)`, `tree.closest(p, test)`,
    `tree.ray(o, d, test)`. Boxes may overlap, be equal, flat or points. One with a corner that is NaN, or a low corner
    above the high one, is empty: nothing finds it.

    >>> @qd.jit
    ... def touching(low, high, radius):
    ...     tree, count = qd.boxes(low, high), qd.zeros(low.shape[0], jnp.int32)
    ...     for i in qd.range(low.shape[0]):
    ...         for j in tree.near(low[i], radius):
    ...             count[i] += 1
    ...     return count
    >>> touching(jnp.array([[0.0], [2.0], [9.0]]), jnp.array([[1.5], [3.0], [9.5]]), 0.5)
    Array([1, 2, 1], dtype=int32)

    Args:
        low, high: corners, floats of shape (n, d), d from 1 to 3.

    Raises:
        TraceTypeError: corners are no floats.
        TraceValueError: corners have another shape, or not the same one.
    """
    low, high = _corners(low, high, "qd.boxes")
    order = order_of(low, high)
    return Boxes(order, levels_of(low, high, order))


def _corners(low: Any, high: Any, what: str) -> tuple[Any, Any]:
    """Returns corners as floats of one dtype; they have no derivative."""
    arrays = [positions_of(corner, what, "corners", "corner") for corner in (low, high)]
    if arrays[0].shape != arrays[1].shape:
        raise TraceValueError.here(
            f"{what} needs as many low corners as high ones, got shapes {arrays[0].shape} and {arrays[1].shape}",
            help="give each box one of each",
        )
    dtype = jnp.promote_types(arrays[0].dtype, arrays[1].dtype)
    return arrays[0].astype(dtype), arrays[1].astype(dtype)


def _row(tree: Boxes, value: Any, what: str, called: str) -> Any:
    row = jax.lax.stop_gradient(jnp.asarray(as_values(value)))
    if row.shape != (tree.axes,):
        raise TraceValueError.here(f"{what} needs {called} of shape {(tree.axes,)}, got {row.shape}", help="give a row")
    return row.astype(tree.levels.nodes.dtype)
