"""A stable sort of long rows as tasks: by the first digit, then the keys of each digit in a cache.

Keys move through memory once, not once a digit. That is possible where no first digit has more keys than a cache
holds; where one has more nothing is moved, and `radix` sorts from the last digit on. The first digit are the first bits
of unsigned keys, of all others a piece of their range (`spread`).
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from qdtrace.algorithms.digits import Digit
from qdtrace.algorithms.moves import STEP, Move, length_of, put, word_of
from qdtrace.algorithms.rows import in_steps
from qdtrace.trace.allocation import empty
from qdtrace.trace.local import local
from qdtrace.trace.loops import ndrange
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.algorithms.spread import SpreadDigit

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
        own, reached = _Own(local(jnp.zeros(room, move.word_type))), _Reached(move, r, first)
        if isinstance(digit, Digit):
            turns = 2 * -(-digit.shift // (2 * NEXT_BITS))  # even, so that words end where they began
            ends = [k * digit.shift // turns for k in range(turns + 1)]
            for turn, (low, high) in enumerate(itertools.pairwise(ends)):
                part = Digit(digit.order, digit.unsigned, low, high - low)
                _turn(part.of, part.width, count, *((own, reached) if turn % 2 else (reached, own)))
        else:
            _by_distance(digit, count, reached, own)
    return is_done


def _by_distance(digit: SpreadDigit, count: Any, reached: _Reached, own: _Own) -> None:
    """Sorts the keys of a piece by the bits in which their numbers, less the smallest of them, differ."""
    kind = digit.unsigned.type
    least, most = local(~kind(0)), local(kind(0))
    for j in in_steps(0, count, STEP):
        number = digit.number(reached.word(j))
        least.value = jnp.minimum(least.value, number)
        most.value = jnp.maximum(most.value, number)
    base, span = least.value, most.value - least.value
    bits = 8 * digit.unsigned.itemsize - lax.clz(span).astype(jnp.int32)
    pairs = (bits + 2 * NEXT_BITS - 1) // (2 * NEXT_BITS)
    # Parts are of one size: where few bits differ, keys side by side would wait for one counter.
    width = (bits + 2 * pairs - 1) // jnp.maximum(2 * pairs, 1)
    mask = ((1 << width) - 1).astype(kind)
    for pair in qd_range(pairs):
        for half in (0, 1):
            shift = (width * (2 * pair + half)).astype(kind)

            def part(word: Any, shift: Any = shift) -> Any:
                return (((digit.number(word) - base) >> shift) & mask).astype(jnp.int32)

            _turn(part, width, count, *((own, reached) if half else (reached, own)))


def _turn(part: Callable[[Any], Any], width: Any, count: Any, come: _Own | _Reached, go: _Own | _Reached) -> None:
    """Sorts words by a part of them of some bits."""
    place, total = local(jnp.zeros(1 << NEXT_BITS, jnp.int32)), local(0, jnp.int32)
    for j in in_steps(0, count, STEP):
        d = part(come.word(j))
        place[d] = place[d] + 1
    for d in qd_range(1 << width):
        here = place[d]
        place[d] = total.value
        total.value = total.value + here
    for j in in_steps(0, count, STEP):
        word = come.word(j)
        d = part(word)
        at = place[d]
        place[d] = at + 1
        go.put(at, word)
