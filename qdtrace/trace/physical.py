"""Complex numbers and random keys: pairs of scalars in a graph, arrays with a trailing axis of 2 at its border."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import UnsupportedError
from qdtrace.ir.types import DType
from qdtrace.trace.dtypes import is_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from qdtrace.errors import Loc
    from qdtrace.trace.jaxprs import Shaped

PLAIN: dict[object, DType] = {d.numpy: d for d in DType}
"""Element types that graphs have."""


def is_pair(aval: Shaped) -> bool:
    """Returns whether values of an aval are PRNG keys or complex numbers, whose elements are pairs of scalars."""
    dtype = aval.dtype
    return not isinstance(dtype, np.dtype) or dtype.kind == "c"


def physical(value: Any) -> Any:
    """Returns the array behind a value: words of random keys and pairs of complex numbers have a trailing axis of 2."""
    if is_key(value):
        return jax.random.key_data(value)
    if isinstance(getattr(value, "dtype", None), np.dtype) and is_pair(value):
        return jnp.stack([jnp.real(value), jnp.imag(value)], -1)
    return value


def logical(value: jax.Array, aval: Shaped) -> jax.Array:
    """Returns the value of an abstract type from its `physical` array."""
    if is_key(aval):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(aval))  # type: ignore[arg-type]
    if is_pair(aval):
        return jax.lax.complex(value[..., 0], value[..., 1])
    return value


def part_dtype(dtype: object, loc: Callable[[], Loc | None]) -> DType | None:
    """Returns the element type of a graph for values of a dtype, or for the parts of a pair; None if there is none.

    Raises UnsupportedError for a kind of random key that graphs do not compute, at the source line that `loc` gives.
    """
    if isinstance(dtype, np.dtype):
        return PLAIN.get(dtype if dtype.kind != "c" else np.dtype(f"f{dtype.itemsize // 2}"))
    if str(dtype) != "key<fry>":
        fix = 'jax.random.key(seed, impl="threefry2x32")'
        raise UnsupportedError(f"needs threefry2x32 keys, got {dtype}", loc=loc(), help=fix)
    return DType.u32
