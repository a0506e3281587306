"""Rules of elementwise operations, products, sums, and of the order and number of axes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from qdtrace.groups import pieces
from qdtrace.groups.blocks import Blocks, is_large, places, shape_of
from qdtrace.groups.registry import rule
from qdtrace.groups.tiles import RefusedError, Tile, filled, padded, spread
from qdtrace.groups.work import most
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.groups.registry import Scope, Value

_SHORT = tuple(map(jnp.dtype, ("float16", "bfloat16")))
_EXACT = frozenset({"convert_element_type", "copy", "select_n", "stop_gradient"})
_PRODUCT_DTYPES = tuple(map(jnp.dtype, ("float32", "float16", "bfloat16")))


@rule(
    "abs", "add", "add_any", "and", "ceil", "convert_element_type", "copy", "cos", "div", "eq", "exp", "expm1", "floor",
    "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "not", "or", "pow", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tanh", "xor",
)  # fmt: skip
def _elementwise(eqn: Any, scope: Scope) -> list[Value]:
    shape = eqn.outvars[0].aval.shape
    if not is_large(shape):
        return [_element(eqn, scope.tiles(eqn), shape)]
    parts = [scope.blocks(v) for v in eqn.invars]
    return [_blocks(shape, lambda place, side: _element(eqn, [x.at(place) for x in parts], side))]


def _blocks(shape: tuple[int, ...], make: Callable[[tuple[int, ...], tuple[int, ...]], Tile]) -> Blocks:
    """Returns an array of blocks that are made of their places and shapes."""
    list(places(shape))  # refuses what is too large
    return Blocks(shape, lambda place: make(place, shape_of(shape, place)))


def _element(eqn: Any, tiles: Sequence[Tile], shape: tuple[int, ...]) -> Tile:
    values = [spread(tile, shape) for tile in tiles]
    if eqn.primitive.name not in _EXACT:  # functions of short floats are those of f32, rounded once
        values = [x.astype(jnp.float32) if x.dtype in _SHORT else x for x in values]
    (made,) = compat.bind_eqn(eqn, values)
    # Triton's maximum and minimum of a number and NaN are the number; XLA's are NaN
    if eqn.primitive in (lax.max_p, lax.min_p) and jnp.issubdtype(made.dtype, jnp.floating):
        made = jnp.where((values[0] != values[0]) | (values[1] != values[1]), values[0] + values[1], made)
    is_packed = any(tile.is_packed for tile in tiles)
    dtype = eqn.outvars[0].aval.dtype
    return Tile(made.astype(dtype), shape, is_turned=_turned(tiles), is_packed=is_packed)


def _turned(tiles: Sequence[Tile]) -> bool | None:
    """Returns how threads hold what is made of tiles element by element: as the first tile that is held in some way."""
    return next((tile.is_turned for tile in tiles if tile.is_turned is not None), None)


@rule("broadcast_in_dim")
def _broadcast(eqn: Any, scope: Scope) -> list[Value]:
    shape, axes = eqn.params["shape"], eqn.params["broadcast_dimensions"]
    source = eqn.invars[0]
    if not is_large(shape):
        return [_repeated(scope.tile(source), shape, axes)]
    parts = scope.blocks(source)
    return [_blocks(shape, lambda place, side: _repeated(parts.at(tuple(place[k] for k in axes)), side, axes))]


def _repeated(tile: Tile, shape: tuple[int, ...], axes: Sequence[int]) -> Tile:
    sides = padded(shape)
    if not tile.shape:
        return Tile(jnp.full(sides, tile.value), shape)
    return Tile(lax.broadcast_in_dim(tile.value, sides, axes), shape)


@rule("transpose")
def _transpose(eqn: Any, scope: Scope) -> list[Value]:
    order, shape = eqn.params["permutation"], eqn.outvars[0].aval.shape
    if not is_large(shape):
        return [_reordered(scope.tile(eqn.invars[0]), order)]
    parts = scope.blocks(eqn.invars[0])
    back = sorted(range(len(order)), key=order.__getitem__)
    return [_blocks(shape, lambda place, _: _reordered(parts.at(tuple(place[k] for k in back)), order))]


def _reordered(tile: Tile, order: Sequence[int]) -> Tile:
    shape = tuple(tile.shape[k] for k in order)
    is_turned = None if tile.is_turned is None else tile.is_turned != (order[-1] != len(order) - 1)
    return Tile(lax.transpose(tile.value, order), shape, tile.is_zero_outside, is_turned, tile.is_packed)


@rule("reshape", "squeeze")
def _reshape(eqn: Any, scope: Scope) -> list[Value]:
    given, shape = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if [n for n in given if n > 1] != [n for n in shape if n > 1]:
        raise RefusedError("a reshape that splits or joins axes")
    if not is_large(shape):
        return [_reshaped(scope.tile(eqn.invars[0]), shape)]
    parts = scope.blocks(eqn.invars[0])

    def make(place: tuple[int, ...], side: tuple[int, ...]) -> Tile:
        long = iter([k for k, n in zip(place, shape, strict=True) if n > 1])
        return _reshaped(parts.at(tuple(next(long) if n > 1 else 0 for n in given)), side)

    return [_blocks(shape, make)]


def _reshaped(tile: Tile, shape: tuple[int, ...]) -> Tile:
    return Tile(tile.value.reshape(padded(shape)), shape, tile.is_zero_outside)


@rule("slice", "dynamic_slice")
def _slice(eqn: Any, scope: Scope) -> list[Tile]:
    """Returns some elements of a tile: one along an axis, or the first ones while the sides of the tile stay."""
    tile, shape = scope.tile(eqn.invars[0]), eqn.outvars[0].aval.shape
    value = tile.value
    if any(step != 1 for step in eqn.params.get("strides") or ()):
        raise RefusedError("a slice with steps")
    starts = eqn.params.get("start_indices") or [scope.tile(v).value for v in eqn.invars[1:]]
    for axis, (have, want, start) in enumerate(zip(tile.shape, shape, starts, strict=True)):
        if have == want:
            continue
        if want == 1:
            at = lax.clamp(jnp.int32(0), jnp.asarray(start, jnp.int32), jnp.int32(have - 1))
            here = lax.broadcasted_iota(jnp.int32, value.shape, axis) == at
            value = jnp.sum(jnp.where(here, value, jnp.zeros((), value.dtype)), axis, keepdims=True).astype(value.dtype)
        elif not isinstance(start, int) or start or padded((want,)) != padded((have,)):
            raise RefusedError("a slice of several elements")
    return [Tile(value, shape)]


@rule("iota")
def _iota(eqn: Any, scope: Scope) -> list[Value]:
    shape, dtype, axis = eqn.params["shape"], eqn.params["dtype"], eqn.params["dimension"]

    def make(place: tuple[int, ...], side: tuple[int, ...]) -> Tile:
        numbers = lax.broadcasted_iota(dtype, padded(side), axis)
        return Tile(numbers + jnp.asarray(most() * place[axis], dtype) if place[axis] else numbers, side)

    return [_blocks(shape, make) if is_large(shape) else make((0,) * len(shape), shape)]


_IDENTITIES = {"reduce_sum": 0, "reduce_max": -jnp.inf, "reduce_min": jnp.inf}


@rule(*_IDENTITIES)
def _reduce(eqn: Any, scope: Scope) -> list[Tile]:
    tile, axes = scope.tile(eqn.invars[0]), tuple(eqn.params["axes"])
    name = eqn.primitive.name
    if not jnp.issubdtype(tile.value.dtype, jnp.floating):
        raise RefusedError(f"{name} of {tile.value.dtype}")
    start = filled(tile, axes, _IDENTITIES[name])
    f = {"reduce_sum": jnp.sum, "reduce_max": jnp.max, "reduce_min": jnp.min}[name]
    made = _along(f, start, axes)
    if eqn.primitive is not lax.reduce_sum_p:  # NaN, as above
        made = jnp.where(_along(jnp.max, (start != start).astype(jnp.int32), axes) > 0, jnp.nan, made)
    return [Tile(made.astype(tile.value.dtype), eqn.outvars[0].aval.shape)]


def _along(f: Callable[..., Any], value: Any, axes: Sequence[int]) -> Any:
    """Returns the reduction of a tile along axes; one over one element needs none."""
    for axis in sorted(axes, reverse=True):
        value = lax.squeeze(value, (axis,)) if value.shape[axis] == 1 else f(value, axis)
    return value


@rule("dot_general")
def _product(eqn: Any, scope: Scope) -> list[Tile]:
    (contracted, (lhs_batch, _)) = eqn.params["dimension_numbers"]
    tiles, out = scope.tiles(eqn), eqn.outvars[0].aval
    if lhs_batch or len(contracted[0]) != 1:
        raise RefusedError("a product with batch axes, or over several axes")
    if any(t.value.dtype != out.dtype for t in tiles) or out.dtype not in _PRODUCT_DTYPES:
        raise RefusedError(f"a product in {out.dtype}")
    values = [filled(tile, axes) for tile, axes in zip(tiles, contracted, strict=True)]
    x, y = (jnp.moveaxis(v, axis, -1) for v, (axis,) in zip(values, contracted, strict=True))
    if min(*x.shape, *y.shape) > 1 and x.ndim == y.ndim == 2:
        made = pieces.product(values[0], values[1], eqn)
    else:
        sides = (*x.shape[:-1], *(1,) * (y.ndim - 1), x.shape[-1])
        wide = jnp.promote_types(out.dtype, jnp.float32)
        made = x.reshape(sides).astype(wide) * y.astype(wide)
        made = lax.squeeze(made, (made.ndim - 1,)) if made.shape[-1] == 1 else jnp.sum(made, -1)
        made = made.astype(out.dtype)
    return [Tile(made, out.shape, is_turned=False)]
