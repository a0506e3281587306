"""Atomic operations on a buffer that give the old value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from qdtrace.errors import TraceTypeError, boundary
from qdtrace.trace import markers
from qdtrace.trace.buffers import Buffer
from qdtrace.trace.context import current, emit
from qdtrace.trace.diagnosis.aliases import note_write
from qdtrace.trace.indexing import as_value, cast_value, parse_index, shown

if TYPE_CHECKING:
    import jax
    import numpy as np

_NUMBERS = {"add", "min", "max"}
_BITS = {"and", "or", "xor"}


def _atomic(name: str, op: str, buffer: object, index: object, *values: object) -> jax.Array:
    current(f"qd.{name}")
    if not isinstance(buffer, Buffer):
        raise TraceTypeError.here(
            f"qd.{name} needs a buffer, got {shown(buffer)}",
            help=f"give the buffer and the index, `qd.{name}(b, k, v)`; make a number, which an argument of rank 0 is "
            "too, a buffer in front of the loops: `c = qd.copy(c)`, with () for the index",
            wants="buffer",
        )
    is_bool, is_integer = buffer.dtype == jnp.bool_, jnp.issubdtype(buffer.dtype, jnp.integer)
    is_complex = jnp.issubdtype(buffer.dtype, jnp.complexfloating)  # of two words, which do not change at once
    if is_complex or (op in _NUMBERS and is_bool) or (op in _BITS and not (is_bool or is_integer)):
        kind = "integers or bool" if op in _BITS else "real numbers" if is_complex else "numbers"
        raise TraceTypeError.here(f"qd.{name} needs a buffer of {kind}, got {buffer.dtype}")
    note_write(buffer)
    access = parse_index(index, buffer.shape)
    if op == "cas" or (op in _BITS and is_bool):
        _check_kept(name, values[0], buffer.dtype)
    operands = [cast_value(v, buffer.dtype, access.shape, f"qd.{name}", op) for v in values]
    return emit(
        markers.atomic_p, buffer.handle, *operands, *access.operands, slices=access.slices, op=op, nvalues=len(operands)
    )


def _check_kept(name: str, value: object, dtype: np.dtype) -> None:
    """Raises TraceTypeError for a value of a dtype of which this one does not hold all: it may become another one."""
    value = as_value(value)
    is_same = isinstance(value, (bool, int, float, complex)) and (dtype != jnp.bool_ or value in (0, 1))
    have = dtype if is_same else jnp.result_type(value)
    if jnp.promote_types(have, dtype) != dtype:
        raise TraceTypeError.here(
            f"qd.{name} needs a value of the buffer's dtype, got {have} for {dtype}",
            help=f"convert it: `.astype(jnp.{dtype})`" if dtype != jnp.bool_ else "compare it: `v != 0`",
        )


@boundary
def atomic_add(buffer: jax.Array, index: object, value: object) -> jax.Array:
    """Adds atomically, `buffer[index] += value`, and returns the old value.

    Which iteration finds which old value depends on their order, which is none.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.zeros((), jnp.int32)
    ...     for i in qd.range(x.shape[0]):
    ...         qd.atomic_add(b, (), x[i])
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array(14, dtype=int32)

    Args:
        buffer: a buffer of real numbers.
        index: a place in it, as in `buffer[index]`.
        value: a number that fits its dtype.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_add", "add", buffer, index, value)


@boundary
def atomic_min(buffer: jax.Array, index: object, value: object) -> jax.Array:
    """Stores `min(buffer[index], value)` atomically and returns the old value.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.full((), 9)
    ...     for i in qd.range(x.shape[0]):
    ...         qd.atomic_min(b, (), x[i])
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array(3, dtype=int32)

    Args:
        buffer: a buffer of real numbers.
        index: a place in it, as in `buffer[index]`.
        value: a number that fits its dtype.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_min", "min", buffer, index, value)


@boundary
def atomic_max(buffer: jax.Array, index: object, value: object) -> jax.Array:
    """Stores `max(buffer[index], value)` atomically and returns the old value.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.full((), 0)
    ...     for i in qd.range(x.shape[0]):
    ...         qd.atomic_max(b, (), x[i])
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array(6, dtype=int32)

    Args:
        buffer: a buffer of real numbers.
        index: a place in it, as in `buffer[index]`.
        value: a number that fits its dtype.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_max", "max", buffer, index, value)


@boundary
def atomic_and(buffer: jax.Array, index: object, value: object) -> jax.Array:
    """Runs `buffer[index] &= value` atomically and returns the old value.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.full((), 7)
    ...     for i in qd.range(x.shape[0]):
    ...         qd.atomic_and(b, (), x[i])
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array(0, dtype=int32)

    Args:
        buffer: a buffer of integers or bools.
        index: a place in it, as in `buffer[index]`.
        value: a number that fits its dtype.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_and", "and", buffer, index, value)


@boundary
def atomic_or(buffer: jax.Array, index: object, value: object) -> jax.Array:
    """Runs `buffer[index] |= value` atomically and returns the old value.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.full((), 0)
    ...     for i in qd.range(x.shape[0]):
    ...         qd.atomic_or(b, (), x[i])
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array(7, dtype=int32)

    Args:
        buffer: a buffer of integers or bools.
        index: a place in it, as in `buffer[index]`.
        value: a number that fits its dtype.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_or", "or", buffer, index, value)


@boundary
def atomic_xor(buffer: jax.Array, index: object, value: object) -> jax.Array:
    """Runs `buffer[index] ^= value` atomically and returns the old value.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.full((), 0)
    ...     for i in qd.range(x.shape[0]):
    ...         qd.atomic_xor(b, (), x[i])
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array(0, dtype=int32)

    Args:
        buffer: a buffer of integers or bools.
        index: a place in it, as in `buffer[index]`.
        value: a number that fits its dtype.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_xor", "xor", buffer, index, value)


@boundary
def atomic_exchange(buffer: jax.Array, index: object, value: object) -> jax.Array:
    """Runs `buffer[index] = value` atomically and returns the old value.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.zeros(3, jnp.int32)
    ...     for i in qd.range(x.shape[0]):
    ...         b[i] = qd.atomic_exchange(x, i, 0)
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array([5, 3, 6], dtype=int32)

    Args:
        buffer: a buffer of real numbers or bools.
        index: a place in it, as in `buffer[index]`.
        value: a number that fits its dtype.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_exchange", "exchange", buffer, index, value)


@boundary
def atomic_cas(buffer: jax.Array, index: object, expected: object, value: object) -> jax.Array:
    """Stores `value` at a place that holds `expected`, else nothing, and returns the old value.

    >>> @qd.jit
    ... def f(x):
    ...     b = qd.zeros(2, jnp.int32)
    ...     for i in qd.range(x.shape[0]):
    ...         qd.atomic_cas(b, x[i] % 2, 0, 1)
    ...     return b
    >>> f(jnp.array([5, 3, 6]))
    Array([1, 1], dtype=int32)

    Args:
        buffer: a buffer of real numbers or bools.
        index: a place in it, as in `buffer[index]`.
        expected: what it shall hold, a number that its dtype holds.
        value: what it holds then.

    Raises:
        TraceTypeError: `buffer` is no buffer, or a dtype is another one.
    """
    return _atomic("atomic_cas", "cas", buffer, index, expected, value)
