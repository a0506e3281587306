"""A stable radix sort of rows as tasks: a digit a pass, from the last one to the first (`moves`).

Buffers hold the bits of keys, and beside them the place that each came from if that is wanted. Digits are those of an
unsigned number in the order of keys (`ordered_bits`). Rows that a cache holds are sorted there (`in_cache`). Long ones
are sorted by their first digit if its keys fit a cache (`first_digit`); the passes then have nothing to do.
"""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
from jax import lax

from qdtrace.algorithms.digits import Digit, unsigned_of
from qdtrace.algorithms.first_digit import FIRST_BITS, by_first_digit, is_long
from qdtrace.algorithms.in_cache import sort_short
from qdtrace.algorithms.moves import Move, length_of
from qdtrace.algorithms.spread import spread_digit
from qdtrace.api import jit
from qdtrace.trace.allocation import empty
from qdtrace.trace.loops import ndrange

DIGIT_BITS = 10
"""Most bits of a digit: runs of a part are to be long, and counts to fit the first cache."""


def _sort(keys: Any, *, ordered: bool, bits: int | None) -> list[Any]:
    """Returns sorted rows of keys (rows, n), and the places that they came from if `ordered`.

    Args:
        keys: integers or floats.
        ordered: whether places are wanted.
        bits: keys are integers of so many bits, not negative; None for any keys.
    """
    unsigned = unsigned_of(keys.dtype)
    word = jnp.promote_types(unsigned, jnp.uint32) if ordered else unsigned
    if keys.shape[1] <= length_of(1 + ordered, word):
        return sort_short(keys, ordered=ordered, bits=bits)
    whole = 8 * keys.dtype.itemsize
    wanted = whole if bits is None else bits
    passes = -(-wanted // DIGIT_BITS)
    starts = [k * wanted // passes for k in range(passes + 1)]
    buffers = [empty((*keys.shape, 1 + ordered), word) for _ in range(min(passes - (not ordered), 2))]
    out = empty(keys.shape, keys.dtype)
    order = unsigned if bits is not None else keys.dtype
    limit_of_keys = bits if wanted < whole else None
    last = buffers[(passes - 1) % 2] if ordered else out
    is_done = None
    if passes > 2 and not ordered and is_long(keys.shape[1], word):  # with places it takes as long
        if order == unsigned:
            digit = Digit(order, unsigned, wanted - FIRST_BITS, FIRST_BITS)
        else:
            digit = spread_digit(keys, order, unsigned, FIRST_BITS)
        is_done = by_first_digit(keys, last, digit, limit_of_keys)
    for k, (first, end) in enumerate(itertools.pairwise(starts)):
        digit = Digit(order, unsigned, first, end - first)
        source = keys if k == 0 else buffers[(k - 1) % 2]
        limit = limit_of_keys if k == 0 and is_done is None else None
        move = Move(source, last if k == passes - 1 else buffers[k % 2], digit)
        parts = move.parts if is_done is None else jnp.where(is_done, 0, move.parts)
        move.count(parts, limit)
        move.find_places(parts)
        move.run(parts)
    return _split(buffers[(passes - 1) % 2], out) if ordered else [out]


def _split(words: Any, keys: Any) -> list[Any]:
    """Returns keys, which it stores, and places of words that have both."""
    order = empty(words.shape[:2], jnp.int32)
    for r, j in ndrange(*words.shape[:2], name="sort_split"):
        keys[r, j] = lax.bitcast_convert_type(words[r, j, 0].astype(unsigned_of(keys.dtype)), keys.dtype)
        order[r, j] = words[r, j, 1].astype(jnp.int32)
    return [keys, order]


sort_rows: Any = jit(_sort, static_argnames=("ordered", "bits"), options={"bounds": "unchecked", "vectorize": False})
