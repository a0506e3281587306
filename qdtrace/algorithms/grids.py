"""`qd.grid`: points sorted by cells, and the loop over those near a place (docs/design/0063-append.md).

A cell has the hash of its coordinates as its key, so points may be anywhere. A loop walks the cells that a ball
touches, and the points of each; those of another cell with the same hash are left out by their coordinates, and those
too far away by their distance.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.algorithms.near_loops import NearLoop, positions_of
from qdtrace.algorithms.packing import segments
from qdtrace.algorithms.sorting import argsort
from qdtrace.errors import TraceTypeError, TraceValueError, boundary, user_loc
from qdtrace.trace import markers
from qdtrace.trace.arguments import as_values
from qdtrace.trace.context import current, emit
from qdtrace.trace.indexing import shown
from qdtrace.trace.local import local
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jax.typing import ArrayLike

_PRIMES = (73856093, 19349663, 83492791)
_FARTHEST = 2.0**30
"""Cells farther away than this are one: their coordinates are i32."""
_NAME = "grid.near"


class Near(NearLoop):
    """The loop of `Grid.near`."""

    def __init__(self, grid: Grid, place: Any, radius: Any) -> None:
        super().__init__(_NAME, "for j in grid.near(p, radius):", place, radius)
        self._grid = grid

    def _trace(self) -> Iterator[jax.Array]:
        grid, place = self._grid, self.place
        if not grid.count:
            return
        radius = jax.lax.stop_gradient(jnp.asarray(self.radius, place.dtype))
        low, length, total = grid.reached(place, radius)
        everything = total > grid.buckets
        left, is_left = local(False), False

        def leaves(condition: Any) -> None:
            nonlocal is_left
            left.value, is_left = left.value | condition, True

        for number in qd_range(jnp.where(everything, 1, total.astype(jnp.int32))):
            cell, rest = [0] * grid.axes, number
            for axis in reversed(range(grid.axes)):
                rest, step = (rest // length[axis], rest % length[axis]) if axis else (rest, rest)
                cell[axis] = low[axis] + step
            bucket = _hashed(cell, grid.buckets)
            begin = jnp.where(everything, 0, grid.offsets[bucket])
            end = jnp.where(everything, grid.count, grid.offsets[bucket + 1])
            inner = qd_range(begin, end)
            inner.use.is_made = True
            for k in inner._trace_body(in_kernel=False):  # pyright: ignore[reportPrivateUsage]
                current(_NAME).regions[-1].on_break = leaves
                square = jnp.zeros((), place.dtype)
                same = True
                for axis in range(grid.axes):
                    same &= grid.cells[k, axis] == cell[axis]
                    square += (grid.positions[k, axis] - place[axis]) ** 2
                is_near = (everything | same) & (square <= radius * radius) & (square < jnp.inf) & (radius >= 0)
                emit(markers.continue_p, ~is_near, loc=user_loc())
                yield grid.order[k]
            if is_left:
                emit(markers.break_p, left.value, loc=user_loc())


@jax.tree_util.register_pytree_node_class
class Grid:
    """Points sorted by the cells of a grid, made by `qd.grid`; a pytree.

    >>> grid = qd.grid(jnp.array([[0.0, 0.0], [5.0, 5.0], [0.5, 0.0]]), 1.0)
    >>> isinstance(grid, qd.Grid), grid.count, grid.order.shape
    (True, 3, (3,))
    """

    def __init__(self, cell: float, order: Any, positions: Any, cells: Any, offsets: Any) -> None:
        self.cell = cell
        self.order: Any = order
        """The number of each point, in the order of cells."""
        self.positions: Any = positions
        """Positions in that order."""
        self.cells: Any = cells
        """Coordinates of their cells."""
        self.offsets: Any = offsets
        """Offsets at which the points of each hash begin."""

    def tree_flatten(self) -> tuple[tuple[Any, ...], float]:
        """Returns the arrays, and the side of a cell."""
        return (self.order, self.positions, self.cells, self.offsets), self.cell

    @classmethod
    def tree_unflatten(cls, cell: float, arrays: tuple[Any, ...]) -> Grid:
        """Returns a grid of the arrays."""
        return cls(cell, *arrays)

    @property
    def count(self) -> int:
        """The number of points."""
        return self.positions.shape[0]

    @property
    def axes(self) -> int:
        """The number of coordinates of a point."""
        return self.positions.shape[1]

    @property
    def buckets(self) -> int:
        """The number of hashes."""
        return self.offsets.shape[0] - 1

    def reached(self, place: Any, radius: Any) -> tuple[list[Any], list[Any], Any]:
        """Returns the first cell that a ball touches, how many along each axis, and how many at all, as a float."""
        low, length, total = list[Any](), list[Any](), jnp.ones((), jnp.float32)
        for axis in range(self.axes):
            # A few roundings more on both sides: no point of the ball may be in a cell beside these.
            slack = 8 * jnp.finfo(place.dtype).eps * (jnp.abs(place[axis]) + jnp.abs(radius) + self.cell)
            first, last = (_cell(place[axis] + r, self.cell) for r in (-radius - slack, radius + slack))
            is_number = (last >= first) & ~jnp.isnan(place[axis] + radius)  # of NaN all cells are cell 0
            low.append(first.astype(jnp.int32))
            span = jnp.where(is_number, last - first + 1, 0)
            length.append(jnp.maximum(jnp.minimum(span, 2.0**30), 1).astype(jnp.int32))
            total *= span
        return low, length, total

    @boundary
    def near(self, place: ArrayLike, radius: ArrayLike) -> Near:
        """Returns a loop over the points at most `radius` away from a place: `for j in grid.near(p, r):`.

        It is a loop of the thread, whose body may use `qd.when`, `qd.break_if`, `qd.continue_if`, cells and buffers.
        `j` is the number of a point, in the order of cells: the same in every run. The point itself is near itself.
        Which points are near has no derivative; what the body computes of their positions has.

        >>> @qd.jit
        ... def nearest(grid, x, places, radius):
        ...     square = qd.full(places.shape[0], jnp.inf)
        ...     for i in qd.range(places.shape[0]):
        ...         for j in grid.near(places[i], radius):
        ...             square.at[i].min(jnp.sum((x[j] - places[i]) ** 2))
        ...     return square
        >>> x = jnp.array([[0.0, 0.0], [5.0, 5.0], [0.5, 0.0]])
        >>> nearest(qd.grid(x, 1.0), x, jnp.array([[0.5, 0.5], [9.0, 9.0]]), 2.0).tolist()
        [0.25, inf]

        Args:
            place: as many coordinates as a point has.
            radius: a number, of any size: beyond a cell more cells are walked, at most as many as there are hashes,
                then all points. Nothing is near within a negative radius or NaN, nor what is not finite, or whose
                squared distance is not.

        Raises:
            TraceValueError: `place` has another shape, or the loop stands outside of loops.
        """
        place = jax.lax.stop_gradient(jnp.asarray(as_values(place)))
        if place.shape != (self.axes,):
            raise TraceValueError.here(
                f"{_NAME} needs a place of shape {(self.axes,)}, got {place.shape}",
                help="give a row: `grid.near(x[i], r)`",
            )
        return Near(self, place.astype(self.positions.dtype), radius)


@boundary
def grid(positions: Any, cell: float) -> Grid:
    """Returns points sorted by the cells of a grid of cubes (squares, intervals) with side `cell`.

    Made once, it serves any number of loops: `for j in grid.near(p, radius)`. The best cell is about as large as radii.
    Points may be anywhere; those that are not finite are near nothing.

    >>> @qd.jit
    ... def neighbours(x, radius):
    ...     grid = qd.grid(x, 1.0)
    ...     count = qd.zeros(x.shape[0], jnp.int32)
    ...     for i in qd.range(x.shape[0]):
    ...         for j in grid.near(x[i], radius):
    ...             with qd.when(j != i):
    ...                 count[i] += 1
    ...     return count
    >>> neighbours(jnp.array([[0.0, 0.0], [5.0, 5.0], [0.5, 0.0]]), 0.75)
    Array([1, 0, 1], dtype=int32)

    Args:
        positions: floats of shape (n, d), d from 1 to 3.
        cell: the side of a cell, a Python number.

    Raises:
        TraceTypeError: positions are no floats, or `cell` is no Python number.
        TraceValueError: positions have another shape, or `cell` is not positive and finite.
    """
    x = positions_of(positions, "qd.grid", "positions", "point")
    # a user may pass anything
    if not isinstance(cell, int | float) or isinstance(cell, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TraceTypeError.here(
            f"qd.grid needs the side of a cell as a Python number, got {shown(cell)}",
            help="radii may be traced; the side of a cell decides only how fast they are searched",
        )
    if not 0 < cell <= sys.float_info.max:
        raise TraceValueError.here(
            f"qd.grid needs a positive side of a cell, got {cell}", help="give about the radius that loops search in"
        )
    bits = max(x.shape[0], 1).bit_length()
    cells = _cell(x, float(cell)).astype(jnp.int32)
    keys = _hashed([cells[:, axis] for axis in range(x.shape[1])], 1 << bits)
    order = argsort(keys, bits=bits)
    return Grid(float(cell), order, x[order], cells[order], segments(keys[order], 1 << bits))


def _cell(x: Any, side: float) -> Any:
    """Returns coordinates of cells, whole numbers as floats; 0 of NaN."""
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))  # a float16 cannot be as far
    return jnp.clip(jnp.nan_to_num(jnp.floor(x / side), nan=0.0), -_FARTHEST, _FARTHEST)


def _hashed(cell: list[Any], buckets: int) -> Any:
    parts = [c * jnp.int32(prime) for c, prime in zip(cell, _PRIMES, strict=False)]
    key = parts[0]
    for part in parts[1:]:
        key ^= part
    return key & (buckets - 1)
