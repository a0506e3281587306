"""A stable sort of long rows as tasks: by the first digit, then the keys of each digit in a cache.

Keys move through memory once, not once a digit. That is possible where no first digit has more keys than a cache
holds; where one has more nothing is moved, and `radix` sorts from the last digit on. The first digit are the first bits
of unsigned keys, of all others a piece of their range (`spread`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp

from qdtrace.algorithms.digits import Digit
from qdtrace.algorithms.in_cache import NEXT_BITS, Own, sort_by, sort_by_distance
from qdtrace.algorithms.moves import Move, length_of, put, word_of
from qdtrace.trace.allocation import empty
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from qdtrace.algorithms.spread import SpreadDigit

FIRST_BITS = 10
"""Bits of the first digit."""
SHORTEST, LONGEST = 1 << 21, 1 << 25
"""Elements of rows for which this is faster: digits are to have thousands of keys, which half a cache holds."""


def is_long(elements: int, word: Any) -> bool:
    """Returns whether rows of words are sorted by their first digit first."""
    return SHORTEST <= elements <= min(LONGEST, length_of(1, word) << (FIRST_BITS - 1))


class _Reached(NamedTuple):
    """Words of a digit where the move by it has put them."""

    move: Move
    row: Any
    first: Any

    def word(self, j: Any) -> Any:
        """Returns the word of element j."""
        return word_of(self.move.target, self.row, self.first + j, self.move.digit, self.move.word_type)

    def put(self, j: Any, word: Any, come: Any, at: Any) -> None:
        """Stores it."""
        del come, at  # there are no places
        put(self.move.target, self.row, self.first + j, 0, word)


def by_first_digit(keys: Any, target: Any, digit: Digit | SpreadDigit, limit: int | None) -> Any:
    """Sorts keys into words of keys alone, or into keys, if none of their first digits has more than a cache holds.

    Returns whether it has; if not, `target` holds anything.
    """
    move = Move(keys, target, digit)
    rows, digits, room = move.rows, move.digits, move.length
    move.count(move.parts, limit)
    move.find_places(move.parts)
    most = empty((), jnp.int32)
    starts = empty((rows, digits + 1), jnp.int32)
    for _ in qd_range(1, name="sort_largest"):
        largest = local(0, jnp.int32)
        for r in qd_range(rows):
            for d in qd_range(digits):
                starts[r, d] = move.places[r, 0, d]
            starts[r, digits] = move.n
            for d in qd_range(digits):
                largest.value = jnp.maximum(largest.value, starts[r, d + 1] - starts[r, d])
        most[()] = largest.value
    is_done = most[()] <= room
    move.run(jnp.where(is_done, move.parts, 0))
    for r, b in ndrange(rows, jnp.where(is_done, digits, 0), name="sort_digit"):
        first, count = starts[r, b], starts[r, b + 1] - starts[r, b]
        own, reached = Own.of(room, move.word_type), _Reached(move, r, first)
        if isinstance(digit, Digit):
            turns = 2 * -(-digit.shift // (2 * NEXT_BITS))  # even, so that words end where they began
            ends = [k * digit.shift // turns for k in range(turns + 1)]
            for turn, (low, high) in enumerate(itertools.pairwise(ends)):
                part = Digit(digit.order, digit.unsigned, low, high - low)
                sort_by(part.of, part.width, count, *((own, reached) if turn % 2 else (reached, own)))
        else:
            sort_by_distance(digit, count, reached, own)
    return is_done
