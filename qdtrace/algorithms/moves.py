"""Moves of rows by a digit, in tasks: what radix sorts are made of (`radix`, `first_digit`).

A row is cut into parts, which threads take. A move counts the digits of each part and adds up what comes before each
digit of each part. Then each part is sorted by the digit in memory of its thread, which a cache holds, and runs of one
digit are copied to where they belong: what is written depends on no thread, so neither does the order of equal keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from qdtrace.algorithms.rows import in_steps
from qdtrace.trace.allocation import empty
from qdtrace.trace.checks import check
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from qdtrace.algorithms.digits import Digit
    from qdtrace.algorithms.spread import SpreadDigit

PART_BYTES = 1 << 18
"""Bytes of words of a part: the second cache holds it twice."""
STEP = 4
"""Elements of one step of a loop: whether the call should end is asked once."""


class Move:
    """Moves words of keys, with their places behind them if a row has two, in the stable order of a digit."""

    def __init__(self, source: Any, target: Any, digit: Digit | SpreadDigit) -> None:
        """Takes where words come from and go to.

        Args:
            source: keys (rows, n), or words (rows, n, 1 or 2).
            target: words, or the keys that they are.
            digit: the digit.
        """
        self.source, self.target, self.digit = source, target, digit
        self.rows, self.n = source.shape[:2]
        self.width, self.digits = target.shape[2] if target.ndim == 3 else 1, 1 << digit.width
        self.word_type = target.dtype if target.ndim == 3 else digit.unsigned
        self.length = min(length_of(self.width, self.word_type), self.n)
        self.parts = -(-self.n // self.length)
        self.counts, self.places = (empty((self.rows, self.parts, self.digits), jnp.int32) for _ in range(2))

    def count(self, parts: Any, limit: int | None) -> None:
        """Counts digits of the first `parts` parts; keys of more than `limit` bits fail, unless that is None."""
        counts = self.counts
        for r, p in ndrange(self.rows, parts, name="sort_count"):
            digit = self.digit.of_row(r)
            for d in qd_range(self.digits):
                counts[r, p, d] = 0
            for j in in_steps(p * self.length, jnp.minimum((p + 1) * self.length, self.n), STEP):
                word = word_of(self.source, r, j, self.digit, self.word_type)
                if limit is not None:
                    check(word >> limit == 0, f"a key that bits={limit} does not hold: give more, or leave bits= out")
                d = digit.of(word)
                counts[r, p, d] = counts[r, p, d] + 1

    def find_places(self, parts: Any) -> None:
        """Adds up what comes before each digit of each part."""
        for r in qd_range(self.rows, name="sort_places"):
            total = local(0, jnp.int32)
            for d in qd_range(self.digits):
                for p in qd_range(parts):
                    self.places[r, p, d] = total.value
                    total.value = total.value + self.counts[r, p, d]

    def run(self, parts: Any) -> None:
        """Moves the words of the first `parts` parts."""
        width = self.width
        for r, p in ndrange(self.rows, parts, name="sort_move"):
            digit = self.digit.of_row(r)
            own = local(jnp.zeros(self.length * width, self.word_type))
            place, total = local(jnp.zeros(self.digits, jnp.int32)), local(0, jnp.int32)
            for d in qd_range(self.digits):
                place[d] = total.value
                total.value = total.value + self.counts[r, p, d]
            for j in in_steps(p * self.length, jnp.minimum((p + 1) * self.length, self.n), STEP):
                word = word_of(self.source, r, j, self.digit, self.word_type)
                d = digit.of(word)
                at = place[d]
                place[d] = at + 1
                own[at * width] = word
                if width == 2:
                    own[at * width + 1] = self.source[r, j, 1] if self.source.ndim == 3 else j.astype(self.word_type)
            for d in qd_range(self.digits):
                count = self.counts[r, p, d]
                first, to = place[d] - count, self.places[r, p, d]
                for e in in_steps(0, count, STEP):
                    for k in range(width):
                        put(self.target, r, to + e, k, own[(first + e) * width + k])


def length_of(width: int, word: Any) -> int:
    """Returns the elements of a part: how many of so many words a cache holds."""
    return PART_BYTES // (width * jnp.dtype(word).itemsize)


def word_of(source: Any, r: Any, j: Any, digit: Digit | SpreadDigit, word_type: Any) -> Any:
    """Returns the bits of a key, of keys or of words."""
    if source.ndim == 3:
        return source[r, j, 0]
    return lax.bitcast_convert_type(source[r, j], digit.unsigned).astype(word_type)


def put(target: Any, r: Any, place: Any, k: int, word: Any) -> None:
    """Stores a word, or the key that it is."""
    if target.ndim == 3:
        target[r, place, k] = word
    else:
        target[r, place] = lax.bitcast_convert_type(word, target.dtype)
