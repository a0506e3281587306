"""Making buffers: `zeros`, `ones`, `full`, `empty`, their `_like` forms, and `copy`."""

from __future__ import annotations

import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace import markers
from qdtrace.trace.buffers import Buffer, new_buffer
from qdtrace.trace.compat import Tracer
from qdtrace.trace.context import current, emit, new_uid
from qdtrace.trace.indexing import as_array, as_value, cast_value, default_dtype
from qdtrace.trace.source import user_loc


def zeros(shape: Any, dtype: Any = None) -> Buffer:
    """A buffer of zeros; float32 unless a dtype is given."""
    return _allocate("zeros", shape, dtype or jnp.float32, 0)


def ones(shape: Any, dtype: Any = None) -> Buffer:
    """A buffer of ones; float32 unless a dtype is given."""
    return _allocate("ones", shape, dtype or jnp.float32, 1)


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Buffer:
    """A buffer filled with a scalar (also a traced one), of its dtype; f32, i32 or bool for a Python number."""
    fill_value = as_array(fill_value, "qd.full")
    return _allocate("full", shape, dtype or default_dtype(fill_value), fill_value)


def empty(shape: Any, dtype: Any = None) -> Buffer:
    """A buffer of undefined content; float32 unless a dtype is given."""
    return _allocate("empty", shape, dtype or jnp.float32, None)


def zeros_like(x: Any, dtype: Any = None) -> Buffer:
    """A buffer of zeros with the shape and dtype of an array or buffer."""
    return _allocate("zeros_like", jnp.shape(x), dtype or _dtype_of(x), 0)


def empty_like(x: Any, dtype: Any = None) -> Buffer:
    """A buffer of undefined content with the shape and dtype of an array or buffer."""
    return _allocate("empty_like", jnp.shape(x), dtype or _dtype_of(x), None)


def copy(x: Any) -> Buffer:
    """A buffer with the present content of an array or buffer."""
    _outside_loops("copy")
    return new_buffer(jnp.asarray(as_value(x)))


def _shown_shape(shape: Any) -> str:
    traced = any(isinstance(n, Tracer) for n in jax.tree.leaves(shape))
    return "a traced value" if traced else str(shape)


def _dtype_of(x: Any) -> Any:
    return x.dtype if hasattr(x, "dtype") else default_dtype(as_array(x, "a `_like` function"))


def _outside_loops(name: str) -> None:
    if current(f"qd.{name}").regions:
        raise TraceValueError(
            f"qd.{name} makes a buffer, which needs to be done outside of loops and conditions",
            loc=user_loc(),
            help="move it in front of the loop; for memory of one iteration use qd.local(jnp.zeros(n))",
        )


def _element_type(dtype: Any) -> np.dtype:
    """As JAX reads it: `float` is float32 without the x64 mode, which float64 warns about."""
    element = np.dtype(dtype)
    if element.itemsize >= 8 and jax.dtypes.canonicalize_dtype(element) != element:
        return jax.eval_shape(lambda: jnp.zeros((), dtype)).dtype
    return element


def _allocate(name: str, shape: Any, dtype: Any, fill: Any) -> Buffer:
    _outside_loops(name)
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
    try:
        element = _element_type(dtype)
    except TypeError:
        raise TraceTypeError(f"qd.{name} needs a dtype, got {dtype!r}", loc=user_loc()) from None
    operands = () if fill is None else (cast_value(fill, element, (), f"the fill value of qd.{name}"),)
    return Buffer(emit(markers.alloc_p, *operands, shape=dims, dtype=element, uid=new_uid()))
