"""Indices that name several elements, at places that are known when the program runs or that go backwards.

    b[k]          k an array of integers: an element, or a row, for each of them
    b[i-1 : i+2]  a slice whose length is known though its start is not
    b[::-1]       a slice with a negative step

Each is that many accesses side by side, at places that markers can express; shapes are NumPy's. A store is one store
after the other in the order of the elements, and `b[k] += v` one accumulation an element: places that are equal all
count. As for a single index, one that is traced does not count from the end, and outside of its axis it is an error,
where NumPy cuts a slice short.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError
from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.diagnosis.access import place_or_rows_in
from qdtrace.trace.indexing import as_array, as_value, filled, is_integer, is_static_int
from qdtrace.trace.windows import length_between

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jax.typing import ArrayLike

LIMIT = 256
"""Most accesses that one index may stand for: each is code of its own."""


@frozen
class Several:
    """The accesses of an index: one key each, in the order of `parts`, and how their values make one array."""

    keys: tuple[tuple[object, ...], ...]
    parts: tuple[int, ...]
    """The axes that the keys run over have these lengths; the last one runs fastest."""
    kept: tuple[int, ...]
    """The axes of one access's value have these lengths."""
    order: tuple[int, ...]
    """The axes of the array are these ones of `parts` and `kept` together."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        both = (*self.parts, *self.kept)
        return tuple(both[k] for k in self.order)

    def joined(self, values: Sequence[jax.Array], dtype: np.dtype) -> jax.Array:
        """Returns the array that the values of all accesses make."""
        if not values:
            return jnp.zeros(self.shape, dtype)
        stacked = jnp.stack(values).reshape(*self.parts, *self.kept)
        return stacked if self.order == tuple(range(stacked.ndim)) else stacked.transpose(self.order)

    def split(self, array: jax.Array) -> list[jax.Array]:
        """Returns the value of each access, of an array of this shape."""
        back = sorted(range(len(self.order)), key=self.order.__getitem__)
        rows = array.transpose(back).reshape(len(self.keys), *self.kept)
        return [rows[k] for k in range(len(self.keys))]


def several(key: object, shape: tuple[int, ...]) -> Several | None:
    """Returns the accesses that `b[key]` means for this shape; None where it is one access, or none that is known."""
    given = key if isinstance(key, tuple) else (key,)
    if all(map(_is_single, given)):
        return None
    keys = [_read(k) for k in filled(given, shape)]
    listed = {axis: places for axis, k in enumerate(keys) if (places := _places_of(k, shape[axis])) is not None}
    known = (np.ndarray, jax.Array)
    arrays = {axis: k for axis, k in enumerate(keys) if isinstance(k, known) and k.ndim and is_integer(k)}
    if not listed and not arrays:
        return None
    if any(isinstance(k, slice) and not _is_plain(k) for axis, k in enumerate(keys) if axis not in listed):
        return None  # a slice of unknown length, which `parse_index` refuses
    if not all(isinstance(k, slice) or is_static_int(k) or is_integer(k) for k in keys):
        return None
    _refuse_a_place(given, arrays, shape)
    together = np.broadcast_shapes(*(k.shape for k in arrays.values()))
    lengths = [len(places) for places in listed.values()]
    if math.prod((*together, *lengths)) > LIMIT:
        raise TraceTypeError.here(
            f"an index in a loop may name {LIMIT} places, got {math.prod((*together, *lengths))}",
            help="walk them with a loop of the thread, `for j in qd.range(n):`, one element or row at a time",
        )
    columns = {axis: _elements(k, together) for axis, k in arrays.items()}
    made: list[tuple[object, ...]] = []
    for at in range(math.prod(together)):
        for chosen in itertools.product(*listed.values()):
            parts = {**dict(zip(listed, chosen, strict=True)), **{axis: of[at] for axis, of in columns.items()}}
            made.append(tuple(parts.get(axis, k) for axis, k in enumerate(keys)))
    plain = [(k, n) for k, n in zip(keys, shape, strict=True) if isinstance(k, slice) and _is_plain(k)]
    kept = [len(range(*k.indices(n))) for k, n in plain]
    order = _order(keys, listed, arrays, len(together))
    return Several(tuple(made), (*together, *lengths), tuple(kept), order)


def _order(
    keys: Sequence[object], listed: Mapping[int, object], arrays: Mapping[int, object], rank: int
) -> tuple[int, ...]:
    """Returns the place of each axis of the array among those of arrays, of listed slices and of kept ones.

    The axes of arrays stand where the first array or number was, if no slice is between these; else in front.
    """
    indexed = [axis for axis, k in enumerate(keys) if not isinstance(k, slice)] if arrays else []
    is_apart = bool(indexed) and indexed[-1] - indexed[0] >= len(indexed)
    slices, rest = itertools.count(rank), itertools.count(rank + len(listed))
    order: list[int] = list(range(rank)) if is_apart else []
    for axis, k in enumerate(keys):
        if indexed and axis == indexed[0] and not is_apart:
            order.extend(range(rank))
        if axis in listed:
            order.append(next(slices))
        elif isinstance(k, slice):
            order.append(next(rest))
    return tuple(order)


def _read(k: object) -> object:
    """Returns an index with cells and buffers read; a list is an array."""
    if isinstance(k, slice):
        return slice(*map(as_value, (k.start, k.stop, k.step)))
    if not isinstance(k, (list, tuple)):
        return as_value(k)
    return np.asarray(k) if all(map(is_static_int, jax.tree.leaves(k))) else as_array(k, "an index")


def _is_single(k: object) -> bool:
    """Returns whether a marker can express an index, or must refuse it; reads no cell and no buffer."""
    if isinstance(k, slice):
        return _is_plain(k)
    return not isinstance(k, (list, tuple)) and getattr(k, "shape", ()) == ()


def _is_static(k: slice) -> bool:
    return all(x is None or is_static_int(x) for x in (k.start, k.stop, k.step))


def _is_plain(k: slice) -> bool:
    """Returns whether a marker has this slice: it is known, and goes forwards."""
    step = k.step
    return _is_static(k) and (step is None or step > 0)


def _places_of(k: object, n: int) -> Sequence[object] | None:
    """Returns the places of a slice that goes backwards or starts at a traced place, if their number is known."""
    if not isinstance(k, slice) or _is_plain(k):
        return None
    if _is_static(k):
        return range(*k.indices(n)) if k.step else None
    step = 1 if k.step is None else compat.number_of(k.step)
    start = as_value(0 if k.start is None else k.start)
    length = length_between(start, k.stop)
    if step is None or step < 1 or length is None:
        return None
    return [start + step * j for j in range(-(-length // step))]


def _elements(k: ArrayLike, shape: tuple[int, ...]) -> list[object]:
    """Returns the elements of an index, brought to a shape, in order: numbers where they are known."""
    if isinstance(k, np.ndarray):
        return [int(x) for x in np.broadcast_to(k, shape).flat]
    spread = jnp.broadcast_to(k, shape).reshape(-1)
    return [spread[j] for j in range(spread.shape[0])]


def _refuse_a_place(given: Sequence[object], arrays: Mapping[int, ArrayLike], shape: tuple[int, ...]) -> None:
    """Refuses `b[place]` with as many numbers as b has axes: rows in NumPy, elsewhere one element."""
    if len(given) == 1 and len(arrays) == 1 and len(shape) > 1 and np.shape(arrays[0]) == (len(shape),):
        raise TraceTypeError.here(
            f"an array of {len(shape)} integers may mean a place or {len(shape)} rows of shape {shape}",
            help=place_or_rows_in(len(shape)),
        )
