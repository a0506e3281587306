"""dtypes of new memory: those that JAX would give an array made of the same."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError
from qdtrace.trace.source import user_loc

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager


def is_key(value: Any) -> bool:
    """Returns whether a value or an abstract one is a random key."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)


def default_dtype(value: Any = 0.0, what: str = "memory") -> np.dtype:
    """Returns the dtype of new memory for a value; for a Python number JAX's default, in x64 mode f64, i64 or c128."""
    for kind in (bool, int, float, complex):
        if isinstance(value, kind):
            return np.dtype(jax.dtypes.canonicalize_dtype(kind))
    _check_not_keys(value.dtype, what)
    return np.dtype(jax.dtypes.canonicalize_dtype(value.dtype)).newbyteorder("=")


def element_type(dtype: Any, what: str) -> np.dtype:
    """Returns a dtype of the user as JAX reads it: without the x64 mode float64 warns and is float32."""
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



WIDE = ("float64", "int64", "uint64", "complex128")
"""Element types of the x64 mode."""


def is_too_wide(x: Any) -> bool:
    """Returns whether a value has a dtype that JAX makes only in the x64 mode, while that is off."""
    return str(x.dtype) in WIDE and not jax.config.jax_enable_x64  # type: ignore[attr-defined]


def mode_for(avals: Iterable[Any]) -> AbstractContextManager[Any]:
    """Returns the x64 mode if values of these types need it: arrays of 64 bits outlive a block of `jax.enable_x64`."""
    return jax.enable_x64(True) if any(map(is_too_wide, avals)) else nullcontext()
