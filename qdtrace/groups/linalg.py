"""Rules of factorisations and triangular solves: a column a step, on tiles in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from qdtrace.groups.registry import rule
from qdtrace.groups.tiles import RefusedError, Tile, filled

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.groups.registry import Scope


def _places(value: Any) -> tuple[Any, Any]:
    """Returns the row and the column of each element of a tile."""
    rows, columns = (lax.broadcasted_iota(jnp.int32, value.shape, axis) for axis in (0, 1))
    return rows, columns


def _steps(count: int, step: Callable[[Any, Any], Any], value: Any) -> Any:
    return lax.fori_loop(jnp.int32(0), jnp.int32(count), step, value)


def _pick(where: Any, value: Any, axis: int) -> Any:
    """Returns the elements of a tile at the one place along an axis where a mask is true."""
    return jnp.sum(jnp.where(where, value, jnp.zeros((), value.dtype)), axis)


def _matrix(tile: Tile) -> Any:
    """Returns a tile of floats with zeros around them. Raises RefusedError for other dtypes, and for vectors."""
    if tile.value.dtype != jnp.float32 or 1 in tile.shape:
        raise RefusedError(f"a factorisation of {tile.value.dtype}{list(tile.shape)}")
    return filled(tile, (0, 1))


@rule("cholesky")
def _cholesky(eqn: Any, scope: Scope) -> list[Tile]:
    tile = scope.tile(eqn.invars[0])
    start = _matrix(tile)
    rows, columns = _places(start)
    index = lax.broadcasted_iota(jnp.int32, start.shape[:1], 0)
    zero = jnp.float32(0)

    def step(j: Any, a: Any) -> Any:
        column = _pick(columns == j, a, 1)
        pivot = _pick(index == j, column, 0)
        column = jnp.where(index >= j, column / jnp.sqrt(pivot), zero)
        below = jnp.where(index > j, column, zero)
        return jnp.where(columns == j, column[:, None], a - column[:, None] * below[None, :])

    made = jnp.where(rows >= columns, _steps(tile.shape[0], step, start), zero)
    diagonal = jnp.sum(_pick(rows == columns, made, 1))
    # what has no factor has NaN in all places, as in JAX
    return [Tile(jnp.where(diagonal == diagonal, made, jnp.float32(jnp.nan)), tile.shape)]


@rule("triangular_solve")
def _solve(eqn: Any, scope: Scope) -> list[Tile]:
    """Eliminates an unknown a step: a row of the right side, or a column of it if it stands on the left."""
    params = eqn.params
    tiles = scope.tiles(eqn)
    a, start = _matrix(tiles[0]), filled(tiles[1], (0, 1))
    side = tiles[0].shape[0]
    if start.dtype != jnp.float32:
        raise RefusedError(f"a solve of {start.dtype}")
    axis = 0 if params["left_side"] else 1
    turned = bool(params["transpose_a"]) != (axis == 1)
    is_forward = bool(params["lower"]) != turned
    rows, columns = _places(a)
    index = lax.broadcasted_iota(jnp.int32, a.shape[:1], 0)
    unknowns = lax.broadcasted_iota(jnp.int32, start.shape, axis)
    is_unit = params["unit_diagonal"]

    def step(k: Any, b: Any) -> Any:
        j = k if is_forward else side - 1 - k
        factors = _pick(rows == j, a, 0) if turned else _pick(columns == j, a, 1)
        found = _pick(unknowns == j, b, axis)
        if not is_unit:
            found = found / _pick(index == j, factors, 0)
        later = index > j if is_forward else index < j
        factors = jnp.expand_dims(jnp.where(later, factors, jnp.float32(0)), 1 - axis)
        found = jnp.expand_dims(found, axis)
        return jnp.where(unknowns == j, found, b - factors * found)

    return [Tile(_steps(side, step, start), tiles[1].shape)]
