"""Making buffers: `zeros`, `ones`, `full`, `empty` and their `_like` forms.

dtypes are JAX's: without one a buffer has the dtype of `jnp.zeros`, `jnp.full` and so on, also in x64 mode. A dtype
that is given stays: a wider float stored into the buffer is rounded to it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace import markers
from qdtrace.trace.buffers import Buffer, check_outside_loops
from qdtrace.trace.compat import Tracer
from qdtrace.trace.context import emit, new_uid
from qdtrace.trace.dtypes import default_dtype, element_type
from qdtrace.trace.indexing import as_array, cast_value
from qdtrace.trace.source import user_loc

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import SupportsIndex

    from jax.typing import DTypeLike

    Shape = SupportsIndex | Sequence[SupportsIndex]


def zeros(shape: Shape, dtype: DTypeLike | None = None) -> jax.Array:
    """A buffer of zeros; of JAX's default float (f32, in x64 mode f64) unless a dtype is given."""
    return _allocate("zeros", shape, default_dtype() if dtype is None else dtype, 0)


def ones(shape: Shape, dtype: DTypeLike | None = None) -> jax.Array:
    """A buffer of ones; of JAX's default float (f32, in x64 mode f64) unless a dtype is given."""
    return _allocate("ones", shape, default_dtype() if dtype is None else dtype, 1)


def full(shape: Shape, fill_value: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """A buffer filled with a scalar (also a traced one), of its dtype; JAX's default for a Python number."""
    fill_value = as_array(fill_value, "qd.full")
    return _allocate("full", shape, default_dtype(fill_value, "qd.full") if dtype is None else dtype, fill_value)


def empty(shape: Shape, dtype: DTypeLike | None = None) -> jax.Array:
    """A buffer of undefined content; of JAX's default float (f32, in x64 mode f64) unless a dtype is given."""
    return _allocate("empty", shape, default_dtype() if dtype is None else dtype, None)


def zeros_like(x: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """A buffer of zeros with the shape and dtype of an array or buffer."""
    return _allocate("zeros_like", jnp.shape(x), _dtype_of(x) if dtype is None else dtype, 0)


def empty_like(x: Any, dtype: DTypeLike | None = None) -> jax.Array:
    """A buffer of undefined content with the shape and dtype of an array or buffer."""
    return _allocate("empty_like", jnp.shape(x), _dtype_of(x) if dtype is None else dtype, None)


def _shown_shape(shape: Any) -> str:
    traced = any(isinstance(n, Tracer) for n in jax.tree.leaves(shape))
    return "a traced value" if traced else str(shape)


def _dtype_of(x: Any) -> Any:
    return default_dtype(x if hasattr(x, "dtype") else as_array(x, "a `_like` function"), "a buffer")


def _allocate(name: str, shape: Any, dtype: Any, fill: Any) -> Buffer:
    check_outside_loops(name)
    try:
        dims = tuple(operator.index(n) for n in (shape if isinstance(shape, (tuple, list)) else (shape,)))
    except TypeError:
        raise TraceTypeError(
            f"qd.{name} needs a shape of static integers, got {_shown_shape(shape)}",
            loc=user_loc(),
            help="shapes come from `x.shape` or static arguments, not from traced values",
        ) from None
    if any(n < 0 for n in dims):
        raise TraceValueError(f"qd.{name} needs a shape without negative lengths, got {dims}", loc=user_loc())
    element = element_type(dtype, f"qd.{name}")
    operands = () if fill is None else (cast_value(fill, element, (), f"the fill value of qd.{name}"),)
    return Buffer(emit(markers.alloc_p, *operands, shape=dims, dtype=element, uid=new_uid()))
