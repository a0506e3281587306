"""dtypes of new memory: those that JAX would give an array made of the same."""

from __future__ import annotations

import functools
import inspect
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import TraceTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from contextlib import AbstractContextManager
    from typing import Any

    from qdtrace.trace.jaxprs import Shaped


F = TypeVar("F", bound="Callable[..., object]")


def is_key(value: object) -> bool:
    """Returns whether a value or an abstract one is a random key."""
    dtype = getattr(value, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended)


def default_dtype(value: Any = 0.0, what: str = "memory") -> np.dtype:
    """Returns the dtype of new memory for a value; for a Python number JAX's default, in x64 mode f64, i64 or c128.

    Values of JAX keep 64 bits outside of the mode, NumPy's do not.
    """
    for kind in (bool, int, float, complex):
        if isinstance(value, kind):
            return np.dtype(jax.dtypes.canonicalize_dtype(kind))
    _check_not_keys(value.dtype, what)
    is_numpy = isinstance(value, np.ndarray | np.generic)
    return np.dtype(jax.dtypes.canonicalize_dtype(value.dtype) if is_numpy else value.dtype).newbyteorder("=")


def is_weak(value: Any) -> bool:
    """Returns whether another operand decides the type of what is computed of a value, as for Python's numbers."""
    return bool(getattr(getattr(value, "aval", value), "weak_type", False))


def as_weak(value: Any) -> Any:
    """Returns an array whose type another operand decides."""
    value = jnp.asarray(value)
    return lax.convert_element_type_p.bind(value, new_dtype=value.dtype, weak_type=True, sharding=None)


def weak_as(result: Any, value: Any) -> Any:
    """Returns the value of a result, weakly typed if its type in the trace is: programs do not keep that."""
    return as_weak(value) if is_weak(result) and not is_weak(value) else value


def element_type(dtype: Any, what: str) -> np.dtype:
    """Returns a dtype of the user as JAX reads it: without the x64 mode float64 warns and is float32."""
    _check_not_keys(dtype, what)
    try:
        element = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        raise TraceTypeError.here(f"{what} needs a dtype, got {dtype!r}") from None
    if element.itemsize >= 8 and jax.dtypes.canonicalize_dtype(element) != element:
        return jax.eval_shape(lambda: jnp.zeros((), dtype)).dtype
    return element


def _check_not_keys(dtype: Any, what: str) -> None:
    if not isinstance(dtype, (str, type(None))) and jnp.issubdtype(dtype, jax.dtypes.extended):
        raise TraceTypeError.here(
            f"{what} holds numbers, got random keys ({dtype})",
            help="keep `jax.random.key_data(key)`; `jax.random.wrap_key_data` makes a key of it",
        )


WIDE = ("float64", "int64", "uint64", "complex128")
"""Element types of the x64 mode."""


def is_x64() -> bool:
    """Returns whether the x64 mode is on."""
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def is_too_wide(dtype: object) -> bool:
    """Returns whether JAX makes values of a dtype only in the x64 mode, while that is off."""
    return str(dtype) in WIDE and not is_x64()


def mode_for(dtypes: Iterable[object]) -> AbstractContextManager[object]:
    """Returns the x64 mode if values of these dtypes need it: arrays of 64 bits outlive a block of `jax.enable_x64`."""
    return jax.enable_x64(True) if any(map(is_too_wide, dtypes)) else nullcontext()


def kept_by_mode(function: F) -> F:
    """Keeps results of a function that rules of JAX or of users take part in, which look at the x64 mode.

    An argument that is left out is the same as its default that is given, and one by name as one by position.
    """
    signature = inspect.signature(function)

    @functools.lru_cache(maxsize=1024)
    def kept(_: bool, args: tuple[Hashable, ...], named: tuple[tuple[str, Hashable], ...]) -> object:
        return function(*args, **dict(named))

    @functools.wraps(function)
    def found(*args: Hashable, **kwargs: Hashable) -> object:
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        return kept(is_x64(), given.args, tuple(given.kwargs.items()))

    made: Any = found
    made.cache_clear = kept.cache_clear
    return made


def as_jax(value: Any) -> jax.Array:
    """Returns a value as an array of JAX with the dtype that it has, also where that is of 64 bits outside of x64."""
    with mode_for([value.dtype] if hasattr(value, "dtype") else ()):
        return jnp.asarray(value)


_WIDENED = frozenset({"add", "mul"})
"""Operations whose results need more digits than narrow floats have."""


def accumulated(aval: Shaped, name: str = "add") -> Shaped:
    """Returns the type in which elements are joined: f32 for sums and products of narrower floats, as in XLA."""
    narrow = name in _WIDENED and jnp.issubdtype(aval.dtype, jnp.floating) and aval.dtype.itemsize < 4
    return jax.ShapeDtypeStruct(aval.shape, np.float32) if narrow else aval
