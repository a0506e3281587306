"""Stable sorts of words in the memory of one thread, which its cache holds: by the bits in which their keys differ.

Words come from one memory and go to another one, and back. Short rows are sorted so, and the keys of a first digit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax import lax

from qdtrace.algorithms.digits import Digit, unsigned_of
from qdtrace.algorithms.moves import STEP
from qdtrace.algorithms.rows import in_steps
from qdtrace.trace.allocation import empty
from qdtrace.trace.checks import check
from qdtrace.trace.local import local
from qdtrace.trace.loops import range as qd_range

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.algorithms.spread import SpreadDigit

NEXT_BITS = 11
"""Most bits that one turn sorts by."""


class Words(Protocol):
    """Memory of words."""

    def word(self, j: Any) -> Any:
        """Returns the word of element j."""
        ...

    def put(self, j: Any, word: Any, come: Any, at: Any) -> None:
        """Stores it, and the place behind it that is element `at` of `come`, if there are places."""
        ...


class Own(NamedTuple):
    """Words in memory of the thread, each with its place behind it if `width` is 2."""

    cells: Any
    width: int

    @classmethod
    def of(cls, elements: int, dtype: Any, width: int = 1) -> Own:
        """Returns memory for so many elements."""
        return cls(local(jnp.zeros(elements * width, dtype)), width)

    def word(self, j: Any) -> Any:
        """Returns the word of element j."""
        return self.cells[j * self.width]

    def put(self, j: Any, word: Any, come: Own, at: Any) -> None:
        """Stores it, with its place."""
        self.cells[j * self.width] = word
        if self.width == 2:
            self.cells[j * self.width + 1] = come.cells[at * come.width + 1]


def sort_short(keys: Any, *, ordered: bool, bits: int | None) -> list[Any]:
    """Returns sorted short rows (rows, n), and their places before if `ordered`. A thread sorts a whole row.

    Args:
        keys: integers or floats.
        ordered: whether places are wanted.
        bits: keys are integers of so many bits, not negative; None for any keys.
    """
    rows, n = keys.shape
    unsigned = unsigned_of(keys.dtype)
    word_type = jnp.promote_types(unsigned, jnp.uint32) if ordered else unsigned
    digit = Digit(unsigned if bits is not None else keys.dtype, unsigned, 0, 8 * unsigned.itemsize)
    out, order = empty(keys.shape, keys.dtype), empty(keys.shape, jnp.int32)
    for r in qd_range(rows, name="sort_short"):
        here, there = (Own.of(n, word_type, 1 + ordered) for _ in range(2))
        for j in qd_range(n):
            word = lax.bitcast_convert_type(keys[r, j], unsigned)
            if bits is not None and bits < digit.width:
                check(word >> bits == 0, f"a key that bits={bits} does not hold: give more, or leave bits= out")
            here.cells[j * here.width] = word.astype(word_type)
            if ordered:
                here.cells[2 * j + 1] = j.astype(word_type)
        sort_by_distance(digit, n, here, there)
        for j in qd_range(n):
            out[r, j] = lax.bitcast_convert_type(here.word(j).astype(unsigned), keys.dtype)
            if ordered:
                order[r, j] = here.cells[2 * j + 1].astype(jnp.int32)
    return [out, order] if ordered else [out]


def sort_by_distance(digit: Digit | SpreadDigit, count: Any, here: Words, there: Words) -> None:
    """Sorts words by the bits in which their numbers, less the smallest of them, differ."""
    kind = digit.unsigned.type
    least, most = local(~kind(0)), local(kind(0))
    for j in in_steps(0, count, STEP):
        number = digit.number(here.word(j))
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

            sort_by(part, width, count, *((there, here) if half else (here, there)))


def sort_by(part: Callable[[Any], Any], width: Any, count: Any, come: Words, go: Words) -> None:
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
        go.put(at, word, come, j)
