"""dtypes of new memory: those that JAX would give an array made of the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError
from qdtrace.trace.source import user_loc


def default_dtype(value: Any = 0.0, what: str = "memory") -> np.dtype:
    """dtype of new memory for a value; for a Python number JAX's default, in x64 mode f64, i64 or c128."""
    for kind in (bool, int, float, complex):
        if isinstance(value, kind):
            return np.dtype(jax.dtypes.canonicalize_dtype(kind))
    _check_not_keys(value.dtype, what)
    return np.dtype(jax.dtypes.canonicalize_dtype(value.dtype)).newbyteorder("=")


def element_type(dtype: Any, what: str) -> np.dtype:
    """A dtype that the user gave, as JAX reads it: without the x64 mode float64 warns and is float32."""
    _check_not_keys(dtype, what)
    try:
        element = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        raise TraceTypeError(f"{what} needs a dtype, got {dtype!r}", loc=user_loc()) from None
    if element.itemsize >= 8 and jax.dtypes.canonicalize_dtype(element) != element:
        return jax.eval_shape(lambda: jnp.zeros((), dtype)).dtype
    return element


def _check_not_keys(dtype: Any, what: str) -> None:
    if not isinstance(dtype, (str, type(None))) and jnp.issubdtype(dtype, jax.dtypes.extended):
        raise TraceTypeError(
            f"{what} holds numbers, got random keys ({dtype})",
            loc=user_loc(),
            help="keep `jax.random.key_data(key)`; `jax.random.wrap_key_data` makes a key of it",
        )

