"""Entries of small matrices: steps are loops over entries, written out where a matrix has few.

What is written out works on `Entries`, numbers of their own: to read or replace one is then no equation, which would
take JAX longer to trace than the arithmetic between them.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Each = Callable[[Any, Any, Callable[[Any, Any], Any], Any], Any]
    """A loop: first number, the one behind the last, body of a number and the state, state."""

UNROLLED = 6
"""Steps over at most this many rows or columns are written out."""
WRITTEN_OUT = 24
"""Most entries of a matrix whose reflections and rotations are written out: loops over more are as fast, and compile in
a third of the time."""


class Entries:
    """An array as numbers of their own, which indices of Python select."""

    def __init__(self, numbers: np.ndarray, dtype: Any) -> None:
        self.numbers, self.dtype = numbers, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.numbers.shape

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.numbers.size


def apart(a: Any) -> Any:
    """Returns the entries of an array; entries are returned as they are."""
    if isinstance(a, Entries):
        return a
    parts = lax.split(a.reshape(a.size), [1] * a.size) if a.size else ()
    return _of([lax.squeeze(x, (0,)) for x in parts], a.shape, a.dtype)


def filled(shape: tuple[int, ...], dtype: Any, *, diagonal: bool = False) -> Any:
    """Returns the entries of an array of zeros, with ones on its diagonal if asked for."""
    zero, one = jnp.zeros((), dtype), jnp.ones((), dtype)
    numbers = [one if diagonal and len({*place}) == 1 else zero for place in np.ndindex(*shape)]
    return _of(numbers, shape, dtype)


def _of(numbers: Sequence[Any], shape: tuple[int, ...], dtype: Any) -> Entries:
    made = np.empty(len(numbers), object)
    for k, number in enumerate(numbers):  # at once, NumPy would look into each of them
        made[k] = number
    return Entries(made.reshape(shape), dtype)


def entries_of(rows: Sequence[Sequence[Any]]) -> Entries:
    """Returns the entries of a matrix, given its rows of numbers."""
    numbers = [x for row in rows for x in row]
    return _of(numbers, (len(rows), len(rows[0])), numbers[0].dtype)


def with_pair(a: Entries, rows: Sequence[Sequence[Any]], p: int, q: int) -> Entries:
    """Returns a matrix with columns p and q replaced, given their rows."""
    numbers = a.numbers.copy()
    for i, pair in enumerate(rows):
        numbers[i, p], numbers[i, q] = pair
    return Entries(numbers, a.dtype)


def short(a: Any) -> Any:
    """Returns a matrix whose steps are written out as entries, any other as it is."""
    return apart(a) if is_short(a) else a


def whole(a: Any) -> Any:
    """Returns the array of these entries; an array is returned as it is."""
    if not isinstance(a, Entries):
        return a
    numbers = [x.reshape(1) for x in a.numbers.ravel()]
    return (lax.concatenate(numbers, 0) if numbers else jnp.zeros(0, a.dtype)).reshape(a.shape)


def steps(count: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """Runs a `fori_loop`, written out when short; `body` sees a Python int then."""
    return loops(count <= UNROLLED)(0, count, body, state)


def is_short(a: Any) -> bool:
    """Returns whether reflections and rotations of a matrix are written out, entry by entry."""
    return a.size <= WRITTEN_OUT


def loops(written: bool) -> Each:
    """Returns `fori_loop`, or what writes its steps out."""
    return _written_loop if written else lax.fori_loop


def _written_loop(first: int, last: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    for k in range(first, last):
        state = body(k, state)
    return state


def at(a: Any, *index: Any) -> Any:
    """Returns an element. Indices are in range: `a[i, j]` has equations for those that count from the end."""
    if isinstance(a, Entries):
        return a.numbers[tuple(map(operator.index, index))]
    return lax.dynamic_slice(a, _of_one_type(index), (1,) * a.ndim, allow_negative_indices=False).reshape(())


def put(a: Any, x: Any, *index: Any) -> Any:
    """Returns the array with an element replaced. Indices are in range: `a.at[i, j].set(x)` has a test of that."""
    if isinstance(a, Entries):
        numbers = a.numbers.copy()
        numbers[tuple(map(operator.index, index))] = x
        return Entries(numbers, a.dtype)
    return lax.dynamic_update_slice(a, x.reshape((1,) * a.ndim), _of_one_type(index), allow_negative_indices=False)


def _of_one_type(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns indices of one dtype: loops whose ends are known count in 64 bits in the x64 mode."""
    given = {i.dtype for i in index if hasattr(i, "dtype")}
    return index if len(given) <= 1 else tuple(lax.convert_element_type(i, jnp.int32) for i in index)


def with_columns(
    each: Each, a: Any, rows: tuple[Any, Any], p: Any, q: Any, change: Callable[[Any, Any], tuple[Any, Any]]
) -> Any:
    """Returns a matrix with entries of columns p and q changed in pairs, from first of `rows` to before the last."""

    def row(i: Any, a: Any) -> Any:
        x, y = change(at(a, i, p), at(a, i, q))
        return put(put(a, x, i, p), y, i, q)

    return each(*rows, row, a)


def real_dtype(a: Any) -> Any:
    """Returns the dtype of the real parts of an array."""
    return jnp.finfo(a.dtype).dtype
