"""A stable radix sort of rows as tasks: a digit a pass, from the last one to the first.

A row is cut into parts, which threads take. A pass counts the digits of each part, adds up what comes before each digit
of each part, and moves elements there: what it writes depends on no thread, so neither does the order of equal keys.
Keys keep their bits; digits are those of an unsigned number in the same order (`digits`).
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.api import jit
from qdtrace.trace.allocation import empty, empty_like
from qdtrace.trace.cells import local
from qdtrace.trace.checks import check
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable

DIGIT_BITS = 11
"""Most bits of a digit: a pass takes as long for 6 bits as for 12, counts of 11 bits fit the first cache."""
PART = 1 << 16
"""Fewest elements of a part: adding up its counts is little work beside them."""
MOST_PARTS = 64


def ordered_bits(key: Any, is_positive: bool) -> Any:
    """Returns an unsigned number of a key's size that is in the order of keys, or of keys with no sign bit set.

    Zeros are equal, NaNs are equal and behind all other numbers, as in `jax.lax.sort`. Numbers below the smallest
    normal one keep their order, which XLA's comparisons lose on a CPU.
    """
    dtype = key.dtype
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return key
    unsigned = jnp.dtype(f"uint{8 * dtype.itemsize}")
    bits = lax.bitcast_convert_type(key, unsigned)
    if is_positive:
        return bits
    sign = unsigned.type(1 << (8 * dtype.itemsize - 1))
    if jnp.issubdtype(dtype, jnp.signedinteger):
        return bits ^ sign
    magnitude = bits & ~sign
    infinity = lax.bitcast_convert_type(np.array(np.inf, dtype), unsigned)
    number = jnp.where((bits == magnitude) | (magnitude == 0), magnitude | sign, ~bits)
    return jnp.where(magnitude > infinity, ~unsigned.type(0), number)


def _sort(keys: Any, *, ordered: bool, bits: int | None) -> list[Any]:
    """Returns sorted rows of keys (rows, n), and the places that they came from if `ordered`.

    Args:
        keys: integers or floats.
        ordered: whether places are wanted.
        bits: keys are integers of so many bits, not negative; None for any keys.
    """
    whole = 8 * keys.dtype.itemsize
    wanted = whole if bits is None else bits
    passes = -(-wanted // DIGIT_BITS)
    starts = [k * wanted // passes for k in range(passes + 1)]
    numbers = functools.partial(ordered_bits, is_positive=bits is not None)
    order = None
    for first, end in itertools.pairwise(starts):
        limit = bits if first == 0 and wanted < whole else None
        keys, order = _pass(keys, order, Digit(numbers, first, end - first), ordered, limit)
    return [keys] if order is None else [keys, order]


class Digit(NamedTuple):
    """Neighbouring bits of keys' numbers."""

    numbers: Callable[[Any], Any]
    shift: int
    width: int

    def of(self, key: Any) -> Any:
        """Returns the digit of a key, as i32."""
        number = self.numbers(key)
        kind = number.dtype.type
        return ((number >> kind(self.shift)) & kind((1 << self.width) - 1)).astype(jnp.int32)


def _pass(keys: Any, order: Any, digit: Digit, ordered: bool, limit: int | None) -> tuple[Any, Any]:
    """Returns keys, and their places if `ordered`, stably sorted by a digit; fails for keys of over `limit` bits."""
    rows, n = keys.shape
    parts = min(max(n // PART, 1), MOST_PARTS)
    length = -(-n // parts)
    counts, places = (empty((rows, parts, 1 << digit.width), jnp.int32) for _ in range(2))

    for r, p in ndrange(rows, parts, name="sort_count"):
        for d in qd_range(1 << digit.width):
            counts[r, p, d] = 0
        for j in qd_range(p * length, jnp.minimum((p + 1) * length, n)):
            key = keys[r, j]
            if limit is not None:
                check(key >> limit == 0, f"a key that bits={limit} does not hold")
            d = digit.of(key)
            counts[r, p, d] = counts[r, p, d] + 1
    for r in qd_range(rows, name="sort_places"):
        total = local(0, jnp.int32)
        for d in qd_range(1 << digit.width):
            for p in qd_range(parts):
                places[r, p, d] = total.value
                total.value = total.value + counts[r, p, d]
    out, source = empty_like(keys), empty(keys.shape, jnp.int32) if ordered else None
    for r, p in ndrange(rows, parts, name="sort_move"):
        for j in qd_range(p * length, jnp.minimum((p + 1) * length, n)):
            key = keys[r, j]
            d = digit.of(key)
            place = places[r, p, d]
            places[r, p, d] = place + 1
            out[r, place] = key
            if source is not None:
                source[r, place] = j if order is None else order[r, j]
    return out, source


sort_rows: Any = jit(_sort, static_argnames=("ordered", "bits"), options={"bounds": "unchecked", "vectorize": False})
