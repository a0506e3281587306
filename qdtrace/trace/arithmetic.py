"""Operators of traced scalars that record one equation each; JAX's trace a `jit`-wrapped function and inline it.

A scalar that this package makes gets a subclass of its tracer's class. `a + b` on it binds `lax.add` where that is all
that `jnp.add` would record: b is a scalar of the same dtype too, or a Python number that the dtype holds. All else goes
to JAX's operator. A result is such a scalar again, and as Python asks a subclass first, so is its sum with a tracer of
JAX's own. A comparison with such a tracer may come out as `b > a` for that reason, where `a < b` is written.
"""

from __future__ import annotations

import enum
import types
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np
from jax import lax

from qdtrace.errors import TraceTypeError
from qdtrace.trace.compat import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jax import Array


T = TypeVar("T")


_FLOATS: set[np.dtype] = {np.dtype(np.float32), np.dtype(np.float64)}
_NUMBERS = _FLOATS | {np.dtype(np.int32), np.dtype(np.int64)}
_OPERATORS: dict[str, tuple[Callable[..., Array], set[np.dtype]]] = {
    "add": (lax.add, _NUMBERS),
    "sub": (lax.sub, _NUMBERS),
    "mul": (lax.mul, _NUMBERS),
    "truediv": (lax.div, _FLOATS),
    "lt": (lax.lt, _NUMBERS),
    "le": (lax.le, _NUMBERS),
    "gt": (lax.gt, _NUMBERS),
    "ge": (lax.ge, _NUMBERS),
    "eq": (lax.eq, _NUMBERS),
    "ne": (lax.ne, _NUMBERS),
}
_EQUAL = "eq", "ne"
_classes: dict[type, type] = {}
_compared: dict[type, type] = {}


def as_scalar(value: T) -> T:
    """Returns the same tracer with these operators, if it is a number of 32 or 64 bits with a sign.

    Of another tracer only comparisons change (`without_enums`), anything else stays as it is.
    """
    if isinstance(value, Tracer) and _is_number(value.aval):
        return subclassed(value, _classes, _members)
    return without_enums(value)


def without_enums(value: T) -> T:
    """Returns the same tracer, whose comparison with a member of an enumeration is refused; anything else as it is."""
    return subclassed(value, _compared, _comparisons) if isinstance(value, Tracer) else value


def subclassed(tracer: T, classes: dict[type, type], members: Callable[[type], Mapping[str, object]]) -> T:
    """Returns the same tracer, its class replaced by a subclass with more members; `classes` are those made so far."""
    kind = type(tracer)
    if kind not in classes:
        added = {"__slots__": (), **members(kind)}
        made = types.new_class(kind.__name__, (kind,), exec_body=lambda space: space.update(added))
        classes[kind] = classes[made] = made
    tracer.__class__ = classes[kind]
    return tracer


def _is_number(aval: Any) -> bool:
    return aval.shape == () and aval.dtype in _NUMBERS and not aval.weak_type


def _members(plain: type) -> dict[str, object]:
    compared = _comparisons(plain)
    found: dict[str, object] = {"__neg__": lambda self: as_scalar(lax.neg(self)), **compared}
    for name, (function, dtypes) in _OPERATORS.items():
        method = f"__{name}__"
        found[method] = _operator(function, dtypes, compared.get(method) or getattr(plain, method))
        if reflected := getattr(plain, f"__r{name}__", None):
            found[f"__r{name}__"] = _operator(lambda a, b, f=function: f(b, a), dtypes, reflected)
    return found


def _comparisons(plain: type) -> dict[str, Callable[..., object]]:
    compared = {f"__{name}__": _without_enums(getattr(plain, f"__{name}__")) for name in _EQUAL}
    return {"__hash__": plain.__hash__, **compared}


def _without_enums(inherited: Callable[..., object]) -> Callable[..., object]:
    """Returns a comparison that refuses a member of an enumeration: to Python it equals no number, so it is False."""

    def method(self: Array, other: object) -> object:
        if isinstance(other, enum.Enum) and not isinstance(other, (int, float)):
            raise TraceTypeError.here(
                f"`{other}` of an enum.Enum equals no number, also where its value does",
                help=f"compare with its value, `{other}.value`, or make {type(other).__name__} an enum.IntEnum",
            )
        return inherited(self, other)

    return method


def _operator(function: Callable[..., Array], dtypes: set[np.dtype], inherited: Callable[..., object]) -> object:
    def method(self: Array, other: object) -> object:
        dtype = self.aval.dtype
        value = _operand(other, dtype) if dtype in dtypes else None
        return inherited(self, other) if value is None else as_scalar(function(self, value))

    return method


def _operand(value: object, dtype: np.dtype) -> object:
    """Returns a value as a scalar operand of that dtype; None where JAX has to decide what it becomes."""
    if isinstance(value, Tracer):
        aval: Any = value.aval
        return value if _is_number(aval) and aval.dtype == dtype else None
    # Without x64 JAX reads a Python number as one of 32 bits.
    if dtype.itemsize == 8 and not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        return None
    if type(value) is int:
        return dtype.type(value) if -(2**31) <= value < 2**31 else None
    return dtype.type(value) if type(value) is float and dtype in _FLOATS and abs(value) < 1e38 else None
