"""Small questions about jaxprs and values that staging asks."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError, UnsupportedError
from qdtrace.ir.types import DType
from qdtrace.trace import compat
from qdtrace.trace.regions import Region
from qdtrace.trace.source import eqn_loc


def is_literal(atom: Any) -> bool:
    """Returns whether an atom is a constant, not a variable."""
    return isinstance(atom, compat.Literal)


def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def physical(value: Any) -> Any:
    """Returns the array behind a value: words of random keys and pairs of complex numbers have a trailing axis of 2."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return value
    if _is_key(dtype):
        return jax.random.key_data(value)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.stack([jnp.real(value), jnp.imag(value)], -1)
    return value


def logical(value: Any, aval: Any) -> Any:
    """Returns the value of an abstract type from its `physical` array."""
    if _is_key(aval.dtype):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(aval))
    if jnp.issubdtype(aval.dtype, jnp.complexfloating):
        return jax.lax.complex(value[..., 0], value[..., 1])
    return value


def physical_type(aval: Any, where: Any = None) -> tuple[tuple[int, ...], DType]:
    """Returns shape and dtype of the array behind an abstract value; `where` is the equation or region that needs it.

    Raises TraceTypeError for an element type that graphs do not have, UnsupportedError for a kind of random key.
    """
    if _is_key(aval.dtype):
        if "fry" not in str(aval.dtype):
            raise UnsupportedError(
                f"needs threefry keys in a loop, got {aval.dtype}",
                loc=_loc(where),
                help='jax.random.key(seed, impl="threefry2x32")',
            )
        return (*aval.shape, 2), DType.u32
    if aval.dtype == np.complex64:
        return (*aval.shape, 2), DType.f32
    if aval.dtype == np.complex128:
        return (*aval.shape, 2), DType.f64
    try:
        return tuple(aval.shape), DType.of(aval.dtype)
    except KeyError:
        raise TraceTypeError(
            f"buffers and loops need one of {', '.join(d.value for d in DType)}, got {aval.dtype}",
            loc=_loc(where),
            help="convert it with .astype outside of the function, or outside of the loop",
        ) from None


def largest_size(eqn: Any) -> int:
    """Returns the elements of the largest value of an equation and of those inside of it."""
    sizes = [int(np.prod(v.aval.shape)) for v in (*eqn.invars, *eqn.outvars)]
    return max([*sizes, *(_largest_inside(compat.open_jaxpr(j)) for j in compat.inner_jaxprs(eqn)), 0])


@functools.lru_cache(maxsize=1024)
def _largest_inside(jaxpr: Any) -> int:
    return max((largest_size(e) for e in jaxpr.eqns), default=0)


def _loc(where: Any) -> Any:
    return where.loc if isinstance(where, Region) else where and eqn_loc(where)


def has_marker(eqn: Any, name: str) -> bool:
    """Returns whether an equation of that primitive is anywhere inside."""
    return any(name in _names_inside(compat.open_jaxpr(j)) for j in compat.inner_jaxprs(eqn))


@functools.lru_cache(maxsize=1024)
def _names_inside(jaxpr: Any) -> frozenset[str]:
    """Returns the names of primitives in a jaxpr; a function that is called often is searched once."""
    inner = (_names_inside(compat.open_jaxpr(j)) for e in jaxpr.eqns for j in compat.inner_jaxprs(e))
    return frozenset(e.primitive.name for e in jaxpr.eqns).union(*inner)
