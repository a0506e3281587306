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


def _near(tile: Tile) -> int:
    """Returns the axis along which picking an element of a square tile takes fewer exchanges between threads.

    Triton gives a thread one element of each row, or four neighbouring ones where it loads them at once.
    """
    return int(tile.is_packed != bool(tile.is_turned))


@rule("cholesky")
def _cholesky(eqn: Any, scope: Scope) -> list[Tile]:
    """Makes the lower factor a column a step, or the upper one a row a step."""
    tile = scope.tile(eqn.invars[0])
    given = _matrix(tile)
    rows, columns = _places(given)
    index = lax.broadcasted_iota(jnp.int32, given.shape[:1], 0)
    zero = jnp.float32(0)
    near = _near(tile)
    across, along = (rows, columns) if near == 0 else (columns, rows)

    def step(j: Any, a: Any) -> Any:
        line = _pick(across == j, a, near)
        line = jnp.where(index >= j, line / jnp.sqrt(_pick(index == j, line, 0)), zero)
        later = jnp.where(index > j, line, zero)
        line = jnp.expand_dims(line, near)
        return jnp.where(across == j, line, a - jnp.expand_dims(later, 1 - near) * line)

    symmetric = given if near == 1 else jnp.where(rows >= columns, given, given.T)
    made = jnp.where(along >= across, _steps(tile.shape[0], step, symmetric), zero)
    diagonal = jnp.sum(_pick(rows == columns, made, near))
    # what has no factor has NaN in all places, as in JAX
    made = jnp.where(diagonal == diagonal, made, jnp.float32(jnp.nan))
    is_turned = bool(tile.is_turned) != (near == 0)
    return [Tile(made if near == 1 else made.T, tile.shape, is_turned=is_turned, is_packed=tile.is_packed)]


@rule("triangular_solve")
def _solve(eqn: Any, scope: Scope) -> list[Tile]:
    """Finds an unknown a step: a row of the right side, or a column of it if it stands on the left.

    A step picks a row of the matrix, or a column, whichever is nearer: what it holds is subtracted from the unknowns
    to come, or multiplied by those that are known.
    """
    params = eqn.params
    tiles = scope.tiles(eqn)
    a, b = _matrix(tiles[0]), filled(tiles[1], (0, 1))
    side = tiles[0].shape[0]
    if b.dtype != jnp.float32:
        raise RefusedError(f"a solve of {b.dtype}")
    axis = 0 if params["left_side"] else 1
    turned = bool(params["transpose_a"]) != (axis == 1)
    is_forward = bool(params["lower"]) != turned
    near = _near(tiles[0])
    subtracts = (near == 0) == turned
    places = _places(a)
    unknowns = lax.broadcasted_iota(jnp.int32, b.shape, axis)
    index = lax.broadcasted_iota(jnp.int32, a.shape[:1], 0)
    zero, one = jnp.float32(0), jnp.float32(1)
    pivots = jnp.full(index.shape, one)
    if not params["unit_diagonal"]:
        pivots = jnp.where(index < side, _pick(places[0] == places[1], a, near), one)
        a = a / jnp.expand_dims(pivots, 1 - near)
    scale = jnp.expand_dims(pivots, 1 - axis)

    def step(k: Any, b: Any) -> Any:
        j = k if is_forward else side - 1 - k
        factors = jnp.expand_dims(_pick(places[near] == j, a, near), 1 - axis)
        if subtracts:
            later = unknowns > j if is_forward else unknowns < j
            found = jnp.expand_dims(_pick(unknowns == j, b, axis), axis)
            return jnp.where(later, b - factors * found, b)
        known = unknowns < j if is_forward else unknowns > j
        total = jnp.sum(jnp.where(known, factors * b, zero), axis)
        return jnp.where(unknowns == j, b - jnp.expand_dims(total, axis), b)

    made = _steps(side, step, b if subtracts else b / scale)
    return [Tile(made / scale if subtracts else made, tiles[1].shape, is_turned=tiles[1].is_turned)]
