"""Kinds of value that an operand has in a lane: how a lane makes the operand from an argument of its own.

An operand of up to 16 elements is in registers whatever its kind; a pair is any kind of a complex dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kind:
    """A kind of value: the shape of the argument for the shape of an operand, and what makes one from the other."""

    argument: Callable[[Shape], Shape]
    made: Callable[[Any, Shape], Any]


def _put_together(x: Any, shape: Shape) -> Any:
    """A copy, which is in private memory where it is large."""
    if not prod(shape):
        return x
    flat = x.reshape(-1)
    return lax.concatenate([flat[:1], flat[1:]], 0).reshape(shape)


def _viewed_shape(shape: Shape) -> Shape:
    return (shape[-1] + 1, *reversed(shape[:-1])) if shape else (3,)


def _viewed(x: Any, shape: Shape) -> Any:
    """A slice of an argument, transposed or turned around."""
    return x[1] if not shape else x[1:][::-1] if len(shape) == 1 else x[1:].T


def _index_arithmetic(x: Any, shape: Shape) -> Any:
    """Numbers that depend on the place alone, and one number of the lane."""
    place = lax.iota(np.int32, prod(shape)).reshape(shape) % 7
    if x.dtype == np.bool_:
        return (place % 2 == 0) ^ x
    numbers = place - (0 if x.dtype.kind == "u" else 3)
    if x.dtype.kind in "iu":
        return numbers.astype(x.dtype) + x
    if x.dtype.kind == "c":
        # part by part: an infinite part would make the other NaN
        real, imag = jnp.real(x), jnp.imag(x)
        return lax.complex(numbers.astype(real.dtype) * real, numbers.astype(real.dtype) * imag)
    return numbers.astype(x.dtype) * x


KINDS: dict[str, Kind] = {
    "argument": Kind(lambda s: s, lambda x, s: x),
    "memory": Kind(lambda s: s, _put_together),
    "view": Kind(_viewed_shape, _viewed),
    "spread": Kind(lambda s: (), lambda x, s: jnp.broadcast_to(x, s)),
    "generated": Kind(lambda s: (), _index_arithmetic),
}
