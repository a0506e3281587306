"""Indices between the brackets of `b[...]`, and the values that may be stored there."""

from __future__ import annotations

import enum
import functools
import math
import operator
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import TraceIndexError, TraceTypeError, TraceValueError
from qdtrace.frozen import frozen
from qdtrace.trace.compat import Tracer
from qdtrace.trace.diagnosis.access import integer_for, new_axis_in, slice_in
from qdtrace.trace.dtypes import as_jax, default_dtype, is_too_wide, mode_for
from qdtrace.trace.lengths import as_length
from qdtrace.trace.markers import Slices, sliced_shape

if TYPE_CHECKING:
    from typing import Any

    from jax.typing import ArrayLike

WHOLE_LIMIT = 256
"""Most elements that `b[...]` or a use of `b` as a value may read inside a loop."""


@frozen
class ParsedIndex:
    """A parsed index: static slices, operands for the other axes, and the shape of the value."""

    slices: Slices
    operands: tuple[jax.Array | np.integer, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return sliced_shape(self.slices)

    @property
    def size(self) -> int:
        """Number of elements moved."""
        return math.prod(self.shape)


def whole(shape: tuple[int, ...]) -> ParsedIndex:
    """Returns the access to a whole buffer or cell of this shape."""
    return ParsedIndex(tuple((0, operator.index(n), 1) for n in shape), ())


def as_value(x: object) -> Any:
    """Reads a cell or a buffer; leaves anything else."""
    read = getattr(type(x), "__jax_array__", None)
    return x if read is None or isinstance(x, jax.Array) else read(x)


def is_static_int(x: object) -> bool:
    """Returns whether a value is a Python or NumPy integer (not a bool)."""
    return isinstance(x, (int, np.integer)) and not isinstance(x, (bool, np.bool_))


def is_simple(key: object) -> bool:
    """Returns whether a marker can express the index: only scalars, static slices and `...`."""
    for k in key if isinstance(key, tuple) else (key,):
        k = as_value(k)
        if isinstance(k, slice):
            if not all(x is None or is_static_int(x) for x in (k.start, k.stop, k.step)):
                return False
            step: Any = k.step
            if step is not None and step < 1:
                return False
        elif k is not Ellipsis and not (is_static_int(k) or _is_integer_scalar(k)):
            return False
    return True


def parse_index(key: object, shape: tuple[int, ...]) -> ParsedIndex:
    """Returns the access that `b[key]` means for a buffer or cell of this shape."""
    keys = filled(key if isinstance(key, tuple) else (key,), shape)
    slices: list[tuple[int, int, int] | None] = []
    operands: list[jax.Array | np.integer] = []
    for axis, (k, n) in enumerate(zip(keys, shape, strict=True)):
        if isinstance(k, slice):
            slices.append(_static_slice(k, axis, n))
        else:
            slices.append(None)
            operands.append(_index_operand(k, axis, shape))
    return ParsedIndex(tuple(slices), tuple(operands))


def filled(keys: tuple[object, ...], shape: tuple[int, ...]) -> list[object]:
    """Returns one key an axis: `...` and missing trailing axes become full slices."""
    dots = [i for i, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise TraceIndexError.here("an index may hold one `...`")
    given = len(keys) - len(dots)
    if any(k is None for k in keys):
        raise TraceTypeError.here("a buffer or cell cannot be indexed with None", help=new_axis_in(len(shape)))
    if given > len(shape):
        raise too_many_indices(given, shape)
    at = dots[0] if dots else len(keys)
    missing = [slice(None)] * (len(shape) - given)
    return [*keys[:at], *missing, *keys[at + 1 :]]


def too_many_indices(given: int, shape: tuple[int, ...]) -> TraceIndexError:
    """Returns the error for more indices than a buffer or cell has axes."""
    spare = ", ".join("ijklmnpq"[: len(shape)])
    fix = f"give {len(shape)}: `b[{spare}]`" if shape else "write `c.value` of a qd.local, `b[()]` of a rank 0 buffer"
    return TraceIndexError.here(f"{given} indices are too many for shape {shape}", help=fix)


def _static_slice(k: slice, axis: int, n: int) -> tuple[int, int, int]:
    parts = (k.start, k.stop, k.step)
    if not all(x is None or is_static_int(x) for x in parts):
        raise TraceTypeError.here(
            f"the slice of axis {axis} needs a length that is known while tracing", help=slice_in()
        )
    if k.step is not None and k.step < 1:
        raise TraceTypeError.here(f"the slice of axis {axis} needs a step other than 0", help="leave it out for 1")
    start, stop, step = k.indices(n)
    return start, max(start, stop), step


def is_integer(k: object) -> bool:
    """Returns whether a value is an array, of any shape, of integers."""
    dtype = getattr(k, "dtype", None)
    return dtype is not None and _rank(dtype) == 1


def _is_integer_scalar(k: object) -> bool:
    return getattr(k, "shape", None) == () and is_integer(k)


def _index_operand(k: Any, axis: int, shape: tuple[int, ...]) -> Any:
    n = shape[axis]
    if is_static_int(k):
        k = operator.index(k) if as_length(k) is None else k
        if not -n <= k < n:
            raise TraceIndexError.here(
                f"index {k} is out of bounds for axis {axis} of shape {shape}",
                help=f"write one from {-n} to {n - 1}" if n else "an axis of length 0 has no elements",
            )
        return _constant_index(k if k >= 0 else k + n)
    k = as_array(k, f"the index of axis {axis}") if isinstance(k, (list, tuple)) else as_value(k)
    if isinstance(k, np.ndarray) and _is_integer_scalar(k):
        return _index_operand(k[()], axis, shape)
    if _is_integer_scalar(k):
        wide = k.dtype in (np.int32, np.int64, np.uint32, np.uint64)
        return k if wide else lax.convert_element_type(k, np.int32)
    is_mask = getattr(k, "dtype", None) == np.bool_
    if np.ndim(k) > 0 and (is_mask or is_integer(k)):
        raise TraceTypeError.here(
            f"the index of axis {axis} must be a scalar, got shape {np.shape(k)}{' of bools' if is_mask else ''}",
            help=MASKED if is_mask else "index with one element of it at a time, `x[k[j]]`, in a loop",
        )
    raise TraceTypeError.here(
        f"the index of axis {axis} must be an integer, got {getattr(k, 'dtype', type(k).__name__)}", help=integer_for(k)
    )


MASKED = "in a loop over its elements use `with qd.when(mask[j]):`, or take the whole row, `jnp.where(mask, a, row)`"


def _constant_index(k: Any) -> Any:
    if (length := as_length(k)) is not None:
        return length.as_bound()
    if k < 2**31:
        return np.int32(k)
    if not jax.config.jax_enable_x64:  # type: ignore[attr-defined]
        raise TraceValueError.here(
            f"index {k} does not fit into int32",
            help="turn on 64-bit integers: jax.config.update('jax_enable_x64', True)",
        )
    return np.int64(k)


def shown(x: object) -> str:
    """Returns a description of a wrong argument, for messages."""
    return "a traced value" if isinstance(x, Tracer) else type(x).__name__


@functools.lru_cache(maxsize=256)
def _rank(dtype: np.dtype) -> int:
    """Returns 0 for bool, 1 for integers, 2 for floats, 3 for complex numbers and -1 for anything else."""
    for rank, kind in enumerate((jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)):
        if jnp.issubdtype(dtype, kind):
            return rank
    return -1


def as_array(value: object, what: str) -> Any:
    """Returns a number, a tracer or a NumPy array from anything array-like."""
    value = as_value(value)
    if isinstance(value, np.ndarray) and not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    if isinstance(value, (Tracer, bool, int, float, complex, np.generic, np.ndarray, jax.Array)):
        return value
    try:
        if isinstance(value, (str, bytes)):  # NumPy would read it as the name of a dtype
            raise TypeError
        return jnp.asarray(value)
    except (TypeError, ValueError):
        raise TraceTypeError.here(
            f"{what} needs a number or an array, got {type(value).__name__}", help=_in_place_of(value)
        ) from None


def _in_place_of(value: object) -> str:
    """Returns the fix for something that is stored and is no number."""
    if callable(value):
        return "call it: a function is no value, what it returns is"
    if isinstance(value, enum.Enum):
        return f"give its value, `{value}.value`, or make {type(value).__name__} an enum.IntEnum"
    if value is None or isinstance(value, (str, bytes)):
        return "give a number in its place: `jnp.nan` or a flag for nothing, for a text its place in a table"
    return (
        "store its parts one by one; `qd.local` takes a structure whose parts have names: a dict, a NamedTuple, "
        "a qd.dataclass"
    )


def cast_value(value: Any, dtype: np.dtype, shape: tuple[int, ...], what: str, op: str = "") -> ArrayLike:
    """Returns `value` in this dtype and shape; refuses what would lose a fraction or does not broadcast.

    An integer that the dtype does not hold is taken modulo its range, as JAX does. For `op` min or max, which would
    then compare another number, it becomes the nearest one that the dtype holds.
    """
    number = as_length(value)
    value = as_array(value if number is None else number.value, what)
    have = value.dtype if hasattr(value, "dtype") else default_dtype(value)
    if _rank(have) > max(_rank(dtype), 1) or (min(_rank(have), _rank(dtype)) < 0 and have != dtype):
        raise TraceTypeError.here(
            f"{what} of {have} into {dtype} would lose information",
            help=f"convert it: `.astype(jnp.{dtype})`, or make the target with dtype={have}",
        )
    try:
        fits = np.broadcast_shapes(np.shape(value), shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise TraceTypeError.here(
            f"{what} needs a value of shape {shape}, got {np.shape(value)}",
            help="store into as many elements as there are values, `b[i, :] = v`, or one of them, `b[i] = v[k]`"
            if what == "a store"
            else "give one of that shape, or a number that fills it",
        )
    if number is not None:
        value = number.traced(dtype)
    if isinstance(value, (bool, int, float, complex)):
        try:
            with np.errstate(all="ignore"):
                value = np.asarray(value, dtype)[()]
        except OverflowError:
            raise TraceTypeError.here(f"{what}: {value} does not fit into {dtype}") from None
    is_numpy = isinstance(value, (np.ndarray, np.generic))
    with mode_for([dtype, value.dtype]):
        if value.dtype != dtype:
            if op in ("min", "max") and _rank(dtype) == _rank(value.dtype) == 1:
                ours, its = jnp.iinfo(dtype), jnp.iinfo(value.dtype)
                limits = [value.dtype.type(k) for k in (max(ours.min, its.min), min(ours.max, its.max))]
                value = np.clip(value, *limits) if is_numpy else lax.clamp(limits[0], value, limits[1])
            value = value.astype(dtype) if is_numpy else lax.convert_element_type(value, dtype)
    if is_numpy and is_too_wide(dtype):
        value = as_jax(value)
    return value if np.shape(value) == shape else jnp.broadcast_to(value, shape)
