"""Making buffers: `zeros`, `ones`, `full`, `empty` and their `_like` forms.

dtypes are JAX's: without one a buffer has the dtype of `jnp.zeros`, `jnp.full` and so on, also in x64 mode. A dtype
that is given stays: a wider float stored into the buffer is rounded to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.errors import TraceTypeError, TraceValueError, boundary
from qdtrace.trace import markers
from qdtrace.trace.buffers import Buffer, check_outside_loops
from qdtrace.trace.compat import Tracer
from qdtrace.trace.context import emit, new_uid
from qdtrace.trace.diagnosis.results import name_of_result
from qdtrace.trace.dtypes import default_dtype, element_type
from qdtrace.trace.indexing import as_array, cast_value
from qdtrace.trace.lengths import as_dims, as_length, recording

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, SupportsIndex

    from jax.typing import ArrayLike, DTypeLike

    Shape = SupportsIndex | Sequence[SupportsIndex]


@boundary
def zeros(shape: Shape, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns a new buffer of zeros.

    >>> @qd.jit
    ... def f(n):
    ...     return qd.zeros(4)
    >>> f(3)
    Array([0., 0., 0., 0.], dtype=float32)

    Args:
        shape: length of each axis, static; an int for one axis, () for a scalar.
        dtype: element type; as `jnp.zeros` has it when None (f32, in x64 mode f64).

    Raises:
        TraceTypeError: a length is traced, or the dtype is no number or bool.
        TraceValueError: a length is negative, or the call stands in a loop or condition.
    """
    return _allocate("zeros", shape, dtype, 0)


@boundary
def ones(shape: Shape, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns a new buffer of ones.

    >>> @qd.jit
    ... def f(n):
    ...     return qd.ones((), jnp.int32)
    >>> f(3)
    Array(1, dtype=int32)

    Args:
        shape: length of each axis, static; an int for one axis, () for a scalar.
        dtype: element type; as `jnp.ones` has it when None (f32, in x64 mode f64).

    Raises:
        TraceTypeError: a length is traced, or the dtype is no number or bool.
        TraceValueError: a length is negative, or the call stands in a loop or condition.
    """
    return _allocate("ones", shape, dtype, 1)


@boundary
def full(shape: Shape, fill_value: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns a new buffer filled with one number.

    >>> @qd.jit
    ... def f(n):
    ...     return qd.full((2, 2), n)
    >>> f(3)
    Array([[3, 3],
           [3, 3]], dtype=int32)

    Args:
        shape: length of each axis, static; an int for one axis, () for a scalar.
        fill_value: a number, also a traced one.
        dtype: element type; as `jnp.full` has it when None (that of the number).

    Raises:
        TraceTypeError: a length is traced, or the dtype is no number or bool.
        TraceValueError: a length is negative, or the call stands in a loop or condition.
    """
    if (length := as_length(fill_value)) is not None:
        return _allocate("full", shape, dtype, length, like=length.value)
    fill_value = as_array(fill_value, "qd.full")
    return _allocate("full", shape, dtype, fill_value, like=fill_value)


@boundary
def empty(shape: Shape, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns a new buffer of undefined content: store each element before it is read or returned.

    >>> @qd.jit
    ... def squares():
    ...     out = qd.empty(3, jnp.int32)
    ...     for i in qd.range(3):
    ...         out[i] = i * i
    ...     return out
    >>> squares()
    Array([0, 1, 4], dtype=int32)

    Args:
        shape: length of each axis, static; an int for one axis, () for a scalar.
        dtype: element type; as `jnp.empty` has it when None (f32, in x64 mode f64).

    Raises:
        TraceTypeError: a length is traced, or the dtype is no number or bool.
        TraceValueError: a length is negative, or the call stands in a loop or condition.
    """
    return _allocate("empty", shape, dtype, None)


@boundary
def zeros_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns a new buffer of zeros with the shape and dtype of an array or buffer.

    >>> @qd.jit
    ... def f(x):
    ...     return qd.zeros_like(x), qd.zeros_like(x, jnp.int32)
    >>> f(jnp.ones(2))
    (Array([0., 0.], dtype=float32), Array([0, 0], dtype=int32))

    Args:
        x: an array, buffer or number.
        dtype: element type; that of `x` when None.

    Raises:
        TraceTypeError: `x` is no array, or the dtype is no number or bool.
        TraceValueError: the call stands in a loop or condition.
    """
    return _allocate_like("zeros_like", x, dtype, 0)


@boundary
def empty_like(x: ArrayLike, dtype: DTypeLike | None = None) -> jax.Array:
    """Returns a new buffer of undefined content with the shape and dtype of an array or buffer.

    >>> @qd.jit
    ... def reversed(x):
    ...     out = qd.empty_like(x)
    ...     for i in qd.range(x.shape[0]):
    ...         out[i] = x[x.shape[0] - 1 - i]
    ...     return out
    >>> reversed(jnp.arange(3))
    Array([2, 1, 0], dtype=int32)

    Args:
        x: an array, buffer or number.
        dtype: element type; that of `x` when None.

    Raises:
        TraceTypeError: `x` is no array, or the dtype is no number or bool.
        TraceValueError: the call stands in a loop or condition.
    """
    return _allocate_like("empty_like", x, dtype, None)


def _allocate_like(name: str, x: Any, dtype: object, fill: Any) -> Buffer:
    like = x if hasattr(x, "dtype") else as_array(x, f"qd.{name}")
    return _allocate(name, jnp.shape(like), dtype, fill, like=like)


def _allocate(name: str, shape: Any, dtype: object, fill: Any, like: object = 0.0) -> Buffer:
    check_outside_loops(name)
    lengths = shape if isinstance(shape, (tuple, list)) else (shape,)
    try:
        dims = as_dims(lengths)
    except TypeError:
        is_traced = any(isinstance(n, Tracer) for n in jax.tree.leaves(shape))
        raise TraceTypeError.here(
            f"qd.{name} needs a shape of static integers, got {'a traced value' if is_traced else shape}",
            help="divide with // in place of /, or write `int(n)`"
            if any(isinstance(n, float) for n in lengths)
            else "shapes come from `x.shape` or static arguments, not from traced values",
        ) from None
    if any((d if as_length(n) is None else n) < 0 for n, d in zip(lengths, dims, strict=True)):
        raise TraceValueError.here(f"qd.{name} needs a shape without negative lengths, got {dims}")
    what = "a buffer" if name.endswith("_like") else f"qd.{name}"
    element = default_dtype(like, what) if dtype is None else element_type(dtype, f"qd.{name}")
    operands = () if fill is None else (cast_value(fill, element, (), f"the fill value of qd.{name}"),)
    called = name_of_result()
    made = Buffer(emit(markers.alloc_p, *operands, shape=dims, dtype=element, uid=new_uid(), called=called))
    if running := recording():
        running.know(made.tracer, tuple(lengths[:1]) + dims[1:])
    return made
