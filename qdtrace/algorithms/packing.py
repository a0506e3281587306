"""`qd.compact` and `qd.segments`."""

from __future__ import annotations

from math import prod
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from qdtrace.algorithms.arguments import count_of, leaves_of, row_of
from qdtrace.algorithms.packed import packed
from qdtrace.api import jit
from qdtrace.errors import TraceTypeError, boundary
from qdtrace.trace.allocation import empty, zeros
from qdtrace.trace.checks import check
from qdtrace.trace.context import get_current
from qdtrace.trace.indexing import as_value
from qdtrace.trace.loops import range as qd_range

T = TypeVar("T")


@boundary
def compact(mask: Any, tree: T, size: int | None = None) -> tuple[T, jax.Array]:
    """Returns the elements of each array of `tree` where `mask` is true, in their order, and how many there are.

    Results have `size` elements; those behind the last one kept are zeros. If more are true than `size`, the first ones
    are kept, and the count is that of all: compare it with `size`. Derivatives go with the elements; `jax.vmap` packs
    rows, each with a count of its own. It may stand wherever JAX functions may. On a CPU masks of 4096 or more elements
    are packed on all threads.

    >>> qd.compact(jnp.array([True, False, True]), jnp.array([1.0, 2.0, 3.0]))
    (Array([1., 3., 0.], dtype=float32), Array(2, dtype=int32))

    Args:
        mask: bools with one axis.
        tree: an array, or a tree of arrays, whose first axes are as long as the mask.
        size: elements of the results, static; as many as the mask has if None.

    Returns the tree, and the count as i32.

    Raises:
        TraceTypeError: the mask is not of bools, or `size` no static integer.
        TraceValueError: the mask has not one axis, an array has another length, or `size` is negative.
    """
    flags = row_of(mask, "qd.compact")
    if flags.dtype != jnp.bool_:
        raise TraceTypeError.here(
            f"qd.compact needs a mask of bools, got {flags.dtype}", help="compare it with something: `mask != 0`"
        )
    length = flags.shape[0]
    room = length if size is None else count_of(size, "size= of qd.compact")
    arrays, structure = leaves_of(tree, "qd.compact", length, "the mask")
    count, *outs = packed(flags[None], *(x.reshape(1, length, prod(x.shape[1:])) for x in arrays), size=room)
    shaped = [out.reshape(room, *x.shape[1:]) for out, x in zip(outs, arrays, strict=True)]
    return jax.tree.unflatten(structure, shaped), count[0]


@boundary
def segments(sorted_keys: Any, n: int) -> jax.Array:
    """Returns where the elements with each key begin: those with key k are `offsets[k]` to `offsets[k + 1] - 1`.

    >>> qd.segments(jnp.array([0, 0, 2, 3, 3, 3]), 5)
    Array([0, 2, 2, 3, 6, 6], dtype=int32)

    Args:
        sorted_keys: integers with one axis, from 0 to `n - 1`, each at least as large as the one before.
        n: the number of keys, static.

    Returns `n + 1` offsets as i32, the first 0 and the last the number of elements.

    Raises:
        TraceTypeError: keys are no integers, or `n` is no static integer.
        TraceValueError: keys have not one axis, or `n` is negative.
        CheckError: when it runs: keys are not sorted, or one is not from 0 to `n - 1`.
    """
    keys = row_of(sorted_keys, "qd.segments")
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        raise TraceTypeError.here(
            f"qd.segments needs integers, got {keys.dtype}", help="number the keys from 0: `.astype(jnp.int32)`"
        )
    count = count_of(n, "n of qd.segments")
    context = get_current()
    if context is not None and context.in_thread:
        return _counted(keys, count)
    return as_value(_segments(keys, n=count))


def _counted(keys: Any, n: int) -> jax.Array:
    """Returns offsets by searches, for the keys of an iteration of a loop."""
    if not keys.shape[0]:
        return jnp.zeros(n + 1, jnp.int32)
    largest = min(max(n - 1, 0), jnp.iinfo(keys.dtype).max)
    check(jnp.all((keys >= 0) & (keys <= largest)) & (n > 0), _OUTSIDE.format(n))
    check(jnp.all(keys[1:] >= keys[:-1]), _UNSORTED)
    return jnp.searchsorted(keys.astype(jnp.int32), jnp.arange(n + 1, dtype=jnp.int32)).astype(jnp.int32)


_OUTSIDE = "qd.segments needs keys below n = {}, from 0: give n = the largest + 1"
_UNSORTED = "qd.segments needs sorted keys: `qd.sort(keys)` sorts them"


def _offsets(keys: Any, *, n: int) -> Any:
    """Returns offsets by one task: an element whose key is not that before it stores where its key begins."""
    count = keys.shape[0]
    if not count:
        return zeros(n + 1, jnp.int32)
    offsets = empty(n + 1, jnp.int32)
    largest = min(max(n - 1, 0), jnp.iinfo(keys.dtype).max)
    for i in qd_range(count + 1, name="segments"):
        own = keys[jnp.minimum(i, count - 1)]
        check((i == count) | ((own >= 0) & (own <= largest)) & (n > 0), _OUTSIDE.format(n))
        before = jnp.where(i > 0, keys[jnp.maximum(i - 1, 0)].astype(jnp.int32), -1)
        key = jnp.where(i < count, own.astype(jnp.int32), n)
        check(before <= key, _UNSORTED)
        for k in qd_range(before + 1, key + 1):
            offsets[k] = i
    return offsets


_segments: Any = jit(_offsets, static_argnames="n")
