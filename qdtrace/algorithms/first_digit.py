"""A stable sort of long rows as tasks: by the first digit, then the keys of each digit in a cache.

Keys move through memory once, not once a digit. That is possible where no first digit has more keys than a cache
holds; where one has more (all keys share it, or are floats, whose first bits are exponents) nothing is moved, and
`radix` sorts from the last digit on.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import jax.numpy as jnp

from qdtrace.algorithms.moves import STEP, Digit, Move, length_of, put, word_of
from qdtrace.algorithms.rows import in_steps
from qdtrace.trace.allocation import empty
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

FIRST_BITS, NEXT_BITS = 10, 11
"""Bits of the first digit, and most bits of those that are sorted in a cache."""
SHORTEST, LONGEST = 1 << 21, 1 << 25
"""Elements of rows for which this is faster: digits are to have thousands of keys, which half a cache holds."""


def is_long(elements: int, target: Any, word: Any) -> bool:
    """Returns whether rows are sorted by their first digit first."""
    return SHORTEST <= elements <= min(LONGEST, length_of(target, word) << (FIRST_BITS - 1))


class _Own(NamedTuple):
    """Words of a digit in memory of the thread."""

    cells: Any

    def word(self, j: Any) -> Any:
        """Returns the word of element j."""
        return self.cells[j]

    def put(self, j: Any, word: Any) -> None:
        """Stores it."""
        self.cells[j] = word


class _Reached(NamedTuple):
    """Words of a digit where the move by it has put them."""

    move: Move
    row: Any
    first: Any

    def word(self, j: Any) -> Any:
        """Returns the word of element j."""
        return word_of(self.move.target, self.row, self.first + j, self.move.digit, self.move.word_type)

    def put(self, j: Any, word: Any) -> None:
        """Stores it."""
        put(self.move.target, self.row, self.first + j, 0, word)


def by_first_digit(keys: Any, target: Any, digit: Digit, limit: int | None) -> Any:
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
    turns = 2 * -(-digit.shift // (2 * NEXT_BITS))  # even, so that words end where they began
    ends = [k * digit.shift // turns for k in range(turns + 1)]
    for r, b in ndrange(rows, jnp.where(is_done, digits, 0), name="sort_digit"):
        first, count = starts[r, b], starts[r, b + 1] - starts[r, b]
        own = local(jnp.zeros(room, move.word_type))
        for turn, (low, high) in enumerate(itertools.pairwise(ends)):
            part = Digit(digit.order, digit.unsigned, low, high - low)
            place, total = local(jnp.zeros(1 << part.width, jnp.int32)), local(0, jnp.int32)
            come = _Own(own) if turn % 2 else _Reached(move, r, first)
            go = _Reached(move, r, first) if turn % 2 else _Own(own)
            for j in in_steps(0, count, STEP):
                d = part.of(come.word(j))
                place[d] = place[d] + 1
            for d in qd_range(1 << part.width):
                here = place[d]
                place[d] = total.value
                total.value = total.value + here
            for j in in_steps(0, count, STEP):
                word = come.word(j)
                d = part.of(word)
                at = place[d]
                place[d] = at + 1
                go.put(at, word)
    return is_done
