"""Digits of keys: neighbouring bits of unsigned numbers that are in the order of keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax


def unsigned_of(dtype: Any) -> Any:
    """Returns the unsigned dtype of a dtype's size."""
    return jnp.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")


def ordered_bits(keys: Any) -> Any:
    """Returns unsigned numbers of the keys' size that are in the order of keys.

    Zeros are equal, NaNs are equal and behind all other numbers, as in `jax.lax.sort`. Numbers below the smallest
    normal one keep their order, which XLA's comparisons of floats lose on a CPU.
    """
    return ordered(lax.bitcast_convert_type(keys, unsigned_of(keys.dtype)), keys.dtype)


def ordered(bits: Any, dtype: Any) -> Any:
    """Returns numbers in the order of keys of a dtype, of their bits."""
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return bits
    sign = bits.dtype.type(1 << (8 * bits.dtype.itemsize - 1))
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return bits ^ sign
    magnitude = bits & ~sign
    infinity = np.array(np.inf, dtype).view(bits.dtype)[()]
    number = jnp.where((bits == magnitude) | (magnitude == 0), magnitude | sign, ~bits)
    return jnp.where(magnitude > infinity, ~bits.dtype.type(0), number)


class Digit(NamedTuple):
    """Neighbouring bits of keys' numbers."""

    order: Any
    """The dtype in whose order the numbers are."""
    unsigned: Any
    """The dtype of keys' bits, which words of buffers may be wider than."""
    shift: int
    width: int

    def of_row(self, row: Any) -> Digit:
        """Returns the digit of keys of a row."""
        del row
        return self

    def of(self, word: Any) -> Any:
        """Returns the digit of a key's bits, as i32."""
        number = self.number(word)
        kind = number.dtype.type
        return ((number >> kind(self.shift)) & kind((1 << self.width) - 1)).astype(jnp.int32)

    def number(self, word: Any) -> Any:
        """Returns the unsigned number of a key's bits."""
        return ordered(word.astype(self.unsigned), self.order)
