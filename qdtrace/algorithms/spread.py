"""A first digit that spreads keys that are near each other: floats of a few exponents, integers far below the largest.

A few keys of a row say between which values most of it is. This range is cut into equal pieces, and the digit of a key
is the number of its piece; what is outside is in the first or the last one. So the digit grows with the key whatever
the few keys are. What a piece holds are then neighbours, whose numbers differ in few bits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from qdtrace.algorithms.digits import ordered
from qdtrace.trace.allocation import empty
from qdtrace.trace.local import local
from qdtrace.trace.loops import range as qd_range

FEW = 1024
"""Keys of a row that are looked at."""


class _Row(NamedTuple):
    """The digit of keys of one row."""

    digit: SpreadDigit
    low: Any
    high: Any
    scale: Any

    def of(self, word: Any) -> Any:
        """Returns the digit of a key's bits, as i32; that of NaN is the last one."""
        last = jnp.float32((1 << self.digit.width) - 1)
        piece = (jnp.minimum(jnp.maximum(self.digit.value(word), self.low), self.high) - self.low) * self.scale
        return jnp.where(piece < last, piece, last).astype(jnp.int32)


class SpreadDigit(NamedTuple):
    """Pieces of the range of keys, of the same size."""

    order: Any
    """The dtype in whose order the keys are."""
    unsigned: Any
    """The dtype of keys' bits."""
    width: int
    """The logarithm of the number of pieces."""
    ranges: Any
    """The least and the largest value of each row (rows, 2), f32."""

    def of_row(self, row: Any) -> _Row:
        """Returns the digit of keys of a row."""
        low, high = self.ranges[row, 0], self.ranges[row, 1]
        scale = jnp.where(high > low, jnp.float32(1 << self.width) / (high - low), 0)
        return _Row(self, low, high, jnp.where(scale < jnp.inf, scale, 0))

    def number(self, word: Any) -> Any:
        """Returns the unsigned number of a key's bits."""
        return ordered(word.astype(self.unsigned), self.order)

    def value(self, word: Any) -> Any:
        """Returns what a key's bits are, as f32, which is in the order of keys."""
        return lax.bitcast_convert_type(word.astype(self.unsigned), self.order).astype(jnp.float32)


def spread_digit(keys: Any, order: Any, unsigned: Any, width: int) -> SpreadDigit:
    """Returns the digit of keys (rows, n), in whose ranges it looks at a few keys of each row."""
    rows, n = keys.shape
    ranges = empty((rows, 2), jnp.float32)
    digit = SpreadDigit(order, unsigned, width, ranges)
    for r in qd_range(rows, name="sort_range"):
        low, high = local(jnp.float32(jnp.inf)), local(jnp.float32(-jnp.inf))
        for k in qd_range(min(n, FEW)):
            value = digit.value(lax.bitcast_convert_type(keys[r, k * max(n // FEW, 1)], unsigned))
            is_number = jnp.abs(value) < jnp.inf
            low.value = jnp.where(is_number & (value < low.value), value, low.value)
            high.value = jnp.where(is_number & (value > high.value), value, high.value)
        ranges[r, 0] = jnp.where(low.value < jnp.inf, low.value, 0)
        ranges[r, 1] = jnp.where(low.value < jnp.inf, high.value, 0)
    return digit
