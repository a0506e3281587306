"""A stable radix sort of rows as tasks: a digit a pass, from the last one to the first.

A row is cut into parts, which threads take. A pass counts the digits of each part and adds up what comes before each
digit of each part. Then each part is sorted by the digit in memory of its thread, which a cache holds, and runs of one
digit are copied to where they belong: what is written depends on no thread, so neither does the order of equal keys.
Buffers hold the bits of keys, and beside them the place that each came from if that is wanted. Digits are those of an
unsigned number in the order of keys (`ordered_bits`).
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.algorithms.rows import in_steps
from qdtrace.api import jit
from qdtrace.trace.allocation import empty
from qdtrace.trace.cells import local
from qdtrace.trace.checks import check
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

DIGIT_BITS = 10
"""Most bits of a digit: runs of a part are to be long, and counts to fit the first cache."""
PART_BYTES = 1 << 18
"""Bytes of words of a part: the second cache holds it twice."""
STEP = 4
"""Elements of one step of a loop: whether the call should end is asked once."""


def unsigned_of(dtype: Any) -> Any:
    """Returns the unsigned dtype of a dtype's size."""
    return jnp.dtype(f"uint{8 * jnp.dtype(dtype).itemsize}")


def ordered_bits(keys: Any) -> Any:
    """Returns unsigned numbers of the keys' size that are in the order of keys.

    Zeros are equal, NaNs are equal and behind all other numbers, as in `jax.lax.sort`. Numbers below the smallest
    normal one keep their order, which XLA's comparisons of floats lose on a CPU.
    """
    return _ordered(lax.bitcast_convert_type(keys, unsigned_of(keys.dtype)), keys.dtype)


def _ordered(bits: Any, dtype: Any) -> Any:
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
    unsigned = unsigned_of(keys.dtype)
    word = jnp.promote_types(unsigned, jnp.uint32) if ordered else unsigned
    buffers = [empty((*keys.shape, 1 + ordered), word) for _ in range(min(passes - (not ordered), 2))]
    out = empty(keys.shape, keys.dtype)
    order = unsigned if bits is not None else keys.dtype
    for k, (first, end) in enumerate(itertools.pairwise(starts)):
        digit = Digit(order, unsigned, first, end - first)
        source = keys if k == 0 else buffers[(k - 1) % 2]
        limit = bits if k == 0 and wanted < whole else None
        _pass(source, out if k == passes - 1 and not ordered else buffers[k % 2], digit, limit)
    return _split(buffers[(passes - 1) % 2], out) if ordered else [out]


class Digit(NamedTuple):
    """Neighbouring bits of keys' numbers."""

    order: Any
    """The dtype in whose order the numbers are."""
    unsigned: Any
    """The dtype of keys' bits, which words of buffers may be wider than."""
    shift: int
    width: int

    def of(self, word: Any) -> Any:
        """Returns the digit of a key's bits, as i32."""
        number = _ordered(word.astype(self.unsigned), self.order)
        kind = number.dtype.type
        return ((number >> kind(self.shift)) & kind((1 << self.width) - 1)).astype(jnp.int32)


def _pass(source: Any, target: Any, digit: Digit, limit: int | None) -> None:
    """Moves words of keys, with their places behind them if a row has two, in the stable order of a digit.

    Args:
        source: keys (rows, n), or words (rows, n, 1 or 2).
        target: words, or the keys that they are.
        digit: the digit.
        limit: the bits of the largest key, or None if there is none: other keys fail.
    """
    rows, n = source.shape[:2]
    width, digits = target.shape[2] if target.ndim == 3 else 1, 1 << digit.width
    word_type = target.dtype if target.ndim == 3 else digit.unsigned
    length = min(PART_BYTES // (width * word_type.itemsize), n)
    parts = -(-n // length)
    counts, places = (empty((rows, parts, digits), jnp.int32) for _ in range(2))

    def word_at(r: Any, j: Any) -> Any:
        if source.ndim == 3:
            return source[r, j, 0]
        return lax.bitcast_convert_type(source[r, j], digit.unsigned).astype(word_type)

    def put(r: Any, place: Any, k: int, word: Any) -> None:
        if target.ndim == 3:
            target[r, place, k] = word
        else:
            target[r, place] = lax.bitcast_convert_type(word, target.dtype)

    for r, p in ndrange(rows, parts, name="sort_count"):
        for d in qd_range(digits):
            counts[r, p, d] = 0
        for j in in_steps(p * length, jnp.minimum((p + 1) * length, n), STEP):
            word = word_at(r, j)
            if limit is not None:
                check(word >> limit == 0, f"a key that bits={limit} does not hold")
            d = digit.of(word)
            counts[r, p, d] = counts[r, p, d] + 1
    for r in qd_range(rows, name="sort_places"):
        total = local(0, jnp.int32)
        for d in qd_range(digits):
            for p in qd_range(parts):
                places[r, p, d] = total.value
                total.value = total.value + counts[r, p, d]
    for r, p in ndrange(rows, parts, name="sort_move"):
        own, place = local(jnp.zeros(length * width, word_type)), local(jnp.zeros(digits, jnp.int32))
        total = local(0, jnp.int32)
        for d in qd_range(digits):
            place[d] = total.value
            total.value = total.value + counts[r, p, d]
        for j in in_steps(p * length, jnp.minimum((p + 1) * length, n), STEP):
            word = word_at(r, j)
            d = digit.of(word)
            at = place[d]
            place[d] = at + 1
            own[at * width] = word
            if width == 2:
                own[at * width + 1] = source[r, j, 1] if source.ndim == 3 else j.astype(word_type)
        for d in qd_range(digits):
            count = counts[r, p, d]
            first, to = place[d] - count, places[r, p, d]
            for e in in_steps(0, count, STEP):
                for k in range(width):
                    put(r, to + e, k, own[(first + e) * width + k])


def _split(words: Any, keys: Any) -> list[Any]:
    """Returns keys, which it stores, and places of words that have both."""
    order = empty(words.shape[:2], jnp.int32)
    for r, j in ndrange(*words.shape[:2], name="sort_split"):
        keys[r, j] = lax.bitcast_convert_type(words[r, j, 0].astype(unsigned_of(keys.dtype)), keys.dtype)
        order[r, j] = words[r, j, 1].astype(jnp.int32)
    return [keys, order]


sort_rows: Any = jit(_sort, static_argnames=("ordered", "bits"), options={"bounds": "unchecked", "vectorize": False})
