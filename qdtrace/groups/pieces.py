"""Products of f32 by a GPU's units for bf16, as exact as by f32: each number is the sum of three of bf16.

The three pieces hold its 24 bits. Of the nine products of pieces those three are left out which are below 2^-25 of the
whole. The units cut off what f32 does not hold of a sum, always towards zero; what they cut off of the largest product
is found by another one, with that sum subtracted.

The last piece of NaN is NaN. Infinities and numbers near the ends of f32's range have no three pieces. Conditions of
the kernel tell, and where one is false its lane is done again, in f32, a line of the operands at a time: short code,
some eight times slower.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

_TERMS = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1))
"""Pieces of both operands, largest first, whose products are added to that of the largest ones."""
_ROUND, _HIGH = 0x8000, -0x10000
"""Half of the last bit of bf16 as bits of f32, and the mask of the bits that it has."""
_LEAST, _MOST = 27 << 23, 253 << 23
"""The bits of 2^-100, whose third piece bf16 holds, and of 2^126, which rounding leaves finite."""
_MAGNITUDE, _INFINITE = 0x7FFFFFFF, 0xFF << 23
Way = Literal["triton", "pieces", "lines"]
_way = ContextVar[Way]("how products of f32 are made", default="triton")
_conditions = ContextVar[list[Any]]("what has to be true for products of pieces to be right")


@contextmanager
def made_by(way: Way | None = None) -> Generator[list[Any]]:
    """Has products of f32 made inside be of pieces, by lines, or by Triton; None leaves how they are made.

    Yields a list, which gets the conditions of what is made inside.
    """
    conditions: list[Any] = []
    tokens = _way.set(way or _way.get()), _conditions.set(conditions)
    try:
        yield conditions
    finally:
        _way.reset(tokens[0])
        _conditions.reset(tokens[1])


def add_condition(condition: Any) -> None:
    """Adds a condition without which the results of a lane are not right."""
    _conditions.get().append(condition)


def all_of(values: Sequence[Any]) -> Any:
    """Returns whether all conditions are true."""
    return functools.reduce(lambda x, y: x & y, values, jnp.bool_(True))


def are_for(eqn: Any) -> bool:
    """Returns whether pieces can have a product: one of f32 at the highest precision."""
    is_full = eqn.params["precision"] == (lax.Precision.HIGHEST,) * 2
    return is_full and all(v.aval.dtype == jnp.float32 for v in eqn.invars)


def product(x: Any, y: Any, eqn: Any) -> Any:
    """Returns the product of two matrices as an equation wants it, in the way that is set."""
    numbers, way = eqn.params["dimension_numbers"], _way.get()
    if way == "triton" or not are_for(eqn):
        return eqn.primitive.bind(x, y, **{**eqn.params, "out_sharding": None})
    return _of_pieces(x, y, numbers) if way == "pieces" else _by_lines(x, y, numbers)


def _of_pieces(x: Any, y: Any, dimension_numbers: Any) -> Any:
    xs, ys = pieces_of(x), pieces_of(y)

    def term(i: int, j: int) -> Any:
        return lax.dot_general(xs[i], ys[j], dimension_numbers, preferred_element_type=jnp.float32)

    whole = term(0, 0)
    rest = term(0, 0) + (-whole)
    for pair in _TERMS:
        rest = rest + term(*pair)
    return jnp.where(jnp.abs(whole) < jnp.inf, whole + rest, whole)  # an infinite sum has no rest: inf - inf


def pieces_of(x: Any) -> list[Any]:
    """Returns the pieces of a tile of f32, largest first, and adds the condition that they hold it."""
    bits = lax.bitcast_convert_type(x, jnp.int32) & _MAGNITUDE
    bits = jnp.where((bits == 0) | (bits > _INFINITE), _LEAST, bits)
    add_condition((jnp.max(jnp.max(bits, 1), 0) < _MOST) & (jnp.min(jnp.min(bits, 1), 0) >= _LEAST))
    found: list[Any] = []
    for _ in range(2):
        # by bits, as XLA takes a conversion to bf16 and back for the number itself
        rounded = (lax.bitcast_convert_type(x, jnp.int32) + _ROUND) & _HIGH
        piece = lax.bitcast_convert_type(rounded, jnp.float32)
        found.append(piece.astype(jnp.bfloat16))
        x = x - piece
    return [*found, x.astype(jnp.bfloat16)]


def _by_lines(x: Any, y: Any, dimension_numbers: Any) -> Any:
    ((left,), (right,)), _ = dimension_numbers

    def line(tile: Any, axis: int, k: Any) -> Any:
        here = lax.broadcasted_iota(jnp.int32, tile.shape, axis) == k
        return jnp.sum(jnp.where(here, tile, jnp.zeros((), tile.dtype)), axis)

    def step(k: Any, made: Any) -> Any:
        return made + line(x, left, k)[:, None] * line(y, right, k)[None, :]

    start = jnp.zeros((x.shape[1 - left], y.shape[1 - right]), x.dtype)
    return lax.fori_loop(jnp.int32(0), jnp.int32(x.shape[left]), step, start)
