"""`qd.sort` and `qd.argsort`."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp

from qdtrace.algorithms.arguments import count_of, keys_of, leaves_of
from qdtrace.algorithms.sorted import sorted_keys
from qdtrace.errors import TraceTypeError, boundary


@overload
def sort(keys: Any, /, *, bits: int | None = None) -> jax.Array: ...
@overload
def sort(keys: Any, value: Any, /, *values: Any, bits: int | None = None) -> tuple[Any, ...]: ...
@boundary
def sort(keys: Any, /, *values: Any, bits: int | None = None) -> Any:
    """Returns sorted keys, and each of `values` in the order of the keys.

    The sort is stable, and its result the same in each run. Floats are ordered as by `jnp.sort`: NaN is behind all
    other numbers, zeros of either sign are equal; numbers below the smallest normal one keep their order, too. It may
    stand wherever JAX functions may: under `jax.jit`, between the loops of a `qd.jit` function, in lanes. Derivatives
    go with the elements; `jax.vmap` sorts rows. On a CPU 1024 keys or more, of one row or of several of 64 or more, are
    sorted by digits, rows and long rows on all threads; fewer, and those on a GPU, by XLA.

    >>> qd.sort(jnp.array([3, 1, 2]))
    Array([1, 2, 3], dtype=int32)
    >>> keys, x = qd.sort(jnp.array([3, 1, 2]), jnp.array([0.3, 0.1, 0.2]))
    >>> x
    Array([0.1, 0.2, 0.3], dtype=float32)

    Args:
        keys: bools, integers or floats with one axis.
        values: arrays, or trees of arrays, whose first axes are as long as `keys`.
        bits: keys are not negative and below `2**bits`, for integers: fewer digits are sorted. On a CPU, a long array
            with another key fails.

    Returns the keys, or a tuple of the keys and the values.

    Raises:
        TraceTypeError: keys have no order (complex numbers), or `bits` is no static integer, or given for floats.
        TraceValueError: keys have not one axis, a value has another length, or there are too many bits.
        CheckError: when it runs: a key has more than `bits` bits.
    """
    array = keys_of(keys, "qd.sort")
    wanted = _bits_of(bits, array, "qd.sort")
    if not values:
        return sorted_keys(array, ordered=False, bits=wanted)[0]
    leaves, tree = leaves_of(values, "qd.sort", array.shape[0], "the keys")
    found, order = sorted_keys(array, ordered=True, bits=wanted)
    moved = [leaf.at[order].get(mode="promise_in_bounds", unique_indices=True) for leaf in leaves]
    return found, *jax.tree.unflatten(tree, moved)


@boundary
def argsort(keys: Any, /, *, bits: int | None = None) -> jax.Array:
    """Returns the places of keys in their order, as i32: `keys[qd.argsort(keys)]` are sorted. See `qd.sort`.

    >>> qd.argsort(jnp.array([3, 1, 2, 1]))
    Array([1, 3, 2, 0], dtype=int32)

    Args:
        keys: bools, integers or floats with one axis.
        bits: keys are not negative and below `2**bits`, for integers: fewer digits are sorted. On a CPU, a long array
            with another key fails.

    Raises:
        TraceTypeError: keys have no order (complex numbers), or `bits` is no static integer, or given for floats.
        TraceValueError: keys have not one axis, or there are too many bits.
        CheckError: when it runs: a key has more than `bits` bits.
    """
    array = keys_of(keys, "qd.argsort")
    return sorted_keys(array, ordered=True, bits=_bits_of(bits, array, "qd.argsort"))[1]


def _bits_of(bits: Any, keys: jax.Array, what: str) -> int | None:
    """Returns the bits of keys that differ; None for all."""
    if bits is None:
        return None
    if not jnp.issubdtype(keys.dtype, jnp.integer):
        raise TraceTypeError.here(
            f"{what} takes bits= for integers, got keys of {keys.dtype}",
            help="leave bits= out: all bits are sorted then",
        )
    most = jnp.iinfo(keys.dtype).bits - jnp.issubdtype(keys.dtype, jnp.signedinteger)
    return count_of(bits, f"bits= of {what}", least=1, most=most)
