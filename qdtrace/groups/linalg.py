"""Rules of factorisations and triangular solves: a column a step, on tiles in registers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from qdtrace.frozen import frozen
from qdtrace.groups.blocks import Blocks, is_large
from qdtrace.groups.registry import rule
from qdtrace.groups.tiles import RefusedError, Tile, filled, padded
from qdtrace.groups.work import most

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.groups.registry import Scope, Value


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
def _cholesky(eqn: Any, scope: Scope) -> list[Value]:
    shape = eqn.outvars[0].aval.shape
    if not is_large(shape):
        made = _factor(scope.tile(eqn.invars[0]))
        return [_or_nan(made, _has_factor(made))]
    return [_factor_of_blocks(scope.blocks(eqn.invars[0]))]


def _has_factor(factor: Tile) -> Any:
    """Returns whether a factor has no NaN on its diagonal, where all of them come from."""
    rows, columns = _places(factor.value)
    diagonal = jnp.sum(_pick(rows == columns, factor.value, _near(factor)))
    return diagonal == diagonal


def _or_nan(factor: Tile, is_valid: Any) -> Tile:
    """Returns a factor; what has none has NaN in all places, as in JAX."""
    return replace(factor, value=jnp.where(is_valid, factor.value, jnp.float32(jnp.nan)))


def _factor_of_blocks(matrix: Blocks) -> Blocks:
    """Makes the factor of a matrix of two blocks by two: the first and what is beside it, a product, and the last."""
    above = (most(), matrix.shape[0] - most())
    zero = Tile(jnp.zeros(padded(above), jnp.float32), above, is_zero_outside=True)
    first, across = _factor_beside(matrix.at((0, 0)), _reordered(matrix.at((1, 0))))
    edge = filled(across, (0, 1))
    product = lax.dot_general(edge, edge, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)
    rest = matrix.at((1, 1))
    last = _factor(replace(rest, value=filled(rest, (0, 1)) - product, is_zero_outside=True))
    is_valid = _has_factor(first) & _has_factor(last)
    made = {(0, 0): first, (0, 1): zero, (1, 0): _reordered(across), (1, 1): last}
    return Blocks(matrix.shape, lambda place: _or_nan(made[place[0], place[1]], is_valid))


def _reordered(tile: Tile) -> Tile:
    """Returns the transpose of a matrix."""
    is_turned = None if tile.is_turned is None else not tile.is_turned
    return replace(tile, value=tile.value.T, shape=tile.shape[::-1], is_turned=is_turned)


def _factor(tile: Tile) -> Tile:
    """Makes the lower factor a column a step, or the upper one a row a step."""
    return _factor_beside(tile, None)[0]


def _factor_beside(tile: Tile, beside: Tile | None) -> tuple[Tile, Any]:
    """Returns the factor of a matrix, and what the lower one makes of a matrix beside it in the same steps."""
    given = _matrix(tile)
    rows, columns = _places(given)
    index = lax.broadcasted_iota(jnp.int32, given.shape[:1], 0)
    zero = jnp.float32(0)
    near = _near(tile)
    across, along = (rows, columns) if near == 0 else (columns, rows)

    def step(j: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        a, *others = state
        line = _pick(across == j, a, near)
        root = jnp.sqrt(_pick(index == j, line, 0))
        line = jnp.where(index >= j, line / root, zero)
        later = jnp.where(index > j, line, zero)
        line = jnp.expand_dims(line, near)
        made = [jnp.where(across == j, line, a - jnp.expand_dims(later, 1 - near) * line)]
        for x in others:
            here = lax.broadcasted_iota(jnp.int32, x.shape, 0) == j
            found = jnp.expand_dims(_pick(here, x, 0) / root, 0)
            made.append(jnp.where(here, found, x - jnp.expand_dims(later, 1) * found))
        return tuple(made)

    symmetric = given if near == 1 else jnp.where(rows >= columns, given, given.T)
    right = () if beside is None else (filled(beside, (0, 1)),)
    factor, *solved = _steps(tile.shape[0], step, (symmetric, *right))
    made = jnp.where(along >= across, factor, zero)
    is_turned = bool(tile.is_turned) != (near == 0)
    lower = Tile(made if near == 1 else made.T, tile.shape, is_turned=is_turned, is_packed=tile.is_packed)
    return lower, replace(beside, value=solved[0]) if beside is not None else None


@rule("triangular_solve")
def _solve(eqn: Any, scope: Scope) -> list[Value]:
    params, shape = eqn.params, eqn.outvars[0].aval.shape
    axis = 0 if params["left_side"] else 1
    is_turned = bool(params["transpose_a"]) != (axis == 1)
    how = System(axis, bool(params["lower"]), is_turned, bool(params["unit_diagonal"]))
    if not is_large(eqn.invars[0].aval.shape) and not is_large(shape):
        a, b = scope.tiles(eqn)
        return [_solved(a, b, how)]
    if axis or shape[1] > 1:
        raise RefusedError(f"a solve for {tuple(shape)}")
    return [_solved_in_blocks(scope.blocks(eqn.invars[0]), scope.blocks(eqn.invars[1]), how)]


def _solved_in_blocks(a: Blocks, b: Blocks, how: System) -> Blocks:
    """Finds the unknowns of one right side in two blocks, and takes what the first ones make up from the second."""
    first = int(not how.is_forward)
    found = _solved(a.at((first, first)), b.at((first, 0)), how)
    factors, known = filled(a.at((1, 0) if how.is_lower else (0, 1)), (0, 1)), filled(found, (0, 1))
    if how.is_turned:
        total = jnp.sum(factors * known, 0, keepdims=True).T
    else:
        total = jnp.sum(factors * known.T, 1, keepdims=True)
    rest = b.at((1 - first, 0))
    rest = replace(rest, value=rest.value - total, is_zero_outside=False)
    parts = [found, _solved(a.at((1 - first, 1 - first)), rest, how)]
    return Blocks(b.shape, lambda place: parts[place[0] != first])


@frozen
class System:
    """A triangular system: the parts of its matrix that are read, and the order of its unknowns."""

    axis: int
    """The axis of the right side along which its unknowns are."""
    is_lower: bool
    is_turned: bool
    """True: unknowns of a step are those of a column of the matrix."""
    is_unit: bool
    """True: the diagonal is taken for ones."""

    @property
    def is_forward(self) -> bool:
        """True: the first unknown is found first."""
        return self.is_lower != self.is_turned


def _solved(a_tile: Tile, b_tile: Tile, how: System) -> Tile:
    """Finds an unknown a step: a row of the right side, or a column of it if it stands on the left.

    A step picks a row of the matrix, or a column, whichever is nearer: what it holds is subtracted from the unknowns
    to come, or multiplied by those that are known.
    """
    a, b = _matrix(a_tile), filled(b_tile, (0, 1))
    side, axis, is_turned, is_forward = a_tile.shape[0], how.axis, how.is_turned, how.is_forward
    if b.dtype != jnp.float32:
        raise RefusedError(f"a solve of {b.dtype}")
    near = _near(a_tile)
    subtracts = (near == 0) == is_turned
    places = _places(a)
    unknowns = lax.broadcasted_iota(jnp.int32, b.shape, axis)
    index = lax.broadcasted_iota(jnp.int32, a.shape[:1], 0)
    zero, one = jnp.float32(0), jnp.float32(1)
    pivots = jnp.full(index.shape, one)
    if not how.is_unit:
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
    return Tile(made / scale if subtracts else made, b_tile.shape, is_turned=b_tile.is_turned)
