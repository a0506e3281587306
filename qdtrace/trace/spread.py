"""Loads and stores by an index that names several elements: one marker for each of its accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import lax

from qdtrace.errors import TraceTypeError
from qdtrace.frozen import frozen
from qdtrace.trace.context import Loaded, current
from qdtrace.trace.elements import as_element
from qdtrace.trace.indexing import ParsedIndex, cast_value, parse_index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import jax

    from qdtrace.trace.handles import MemoryHandle
    from qdtrace.trace.several import Several


@frozen
class Change:
    """A part of `b[k] += v`: the value that was loaded, what is added to it, and whether one statement does both."""

    loaded: jax.Array
    delta: jax.Array
    in_place: bool


def load_several(
    memory: MemoryHandle, key: object, places: Several, load: Callable[[ParsedIndex], jax.Array]
) -> jax.Array:
    """Returns the array that an index loads, able to accumulate."""
    values = tuple(load(parse_index(k, memory.shape)) for k in places.keys)
    result = as_element(places.joined(values, memory.dtype))
    current("b[i]").note_loads(result, Loaded(key, places.keys, values))
    return result


def parts_to_store(
    memory: MemoryHandle, key: object, places: Several, value: object
) -> Iterator[tuple[ParsedIndex, jax.Array, Change | None]]:
    """Yields each access with the value to store there, and the change that it is if `b[k] += v` made it."""
    context = current("b[i] = v")
    pending = context.sums.pop(id(value), None)
    loaded = None if pending is None else context.loads.get(id(pending.loaded))
    in_place = pending is not None and pending.statement is not None and pending.statement.is_storing()
    if pending is None or loaded is None or len(loaded.values) != len(places.keys):
        if in_place:
            raise TraceTypeError.here(
                "`b[k] += v` needs to store where it loaded, got another number of places",
                help="write `b.at[k].add(v)`",
            )
        stored = jnp.asarray(cast_value(value, memory.dtype, places.shape, "a store"))
        for k, part in zip(places.keys, places.split(stored), strict=True):
            yield parse_index(k, memory.shape), part, None
        return
    delta = jnp.asarray(cast_value(pending.value, memory.dtype, places.shape, "an accumulation"))
    deltas = places.split(lax.neg(delta) if pending.negate else delta)
    keys = loaded.keys if _is_same_key(key, loaded.key) else places.keys
    for k, old, part in zip(keys, loaded.values, deltas, strict=True):
        yield parse_index(k, memory.shape), old + part, Change(old, part, in_place)


def _is_same_key(a: object, b: object) -> bool:
    """Returns whether two indices are one object, or slices with the same ends: Python may make a slice twice."""
    if isinstance(a, slice) and isinstance(b, slice):
        return a.start is b.start and a.stop is b.stop and a.step is b.step
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_is_same_key, a, b))
    return a is b
