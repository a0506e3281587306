"""Arguments of algorithms: arrays with one axis, keys with an order, values as long as these, static numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from qdtrace.api import jit, to_jax
from qdtrace.errors import TraceTypeError, TraceValueError
from qdtrace.trace.arguments import as_values
from qdtrace.trace.indexing import as_array, is_static_int, shown

if TYPE_CHECKING:
    from qdtrace.trace.compat import Primitive

_INTEGERS = (f"{kind}{n}" for kind in ("int", "uint") for n in (8, 16, 32, 64))
ORDERED = ("bool", "bfloat16", "float16", "float32", "float64", *_INTEGERS)
"""Names of the dtypes of keys."""
MOST = 2**31 - 1
"""The largest static number: places are i32."""
MOST_ELEMENTS = 2**31 - 2**18
"""Most elements of an array: the end of a part behind the last one is an i32, too."""


def compiled(primitive: Primitive, *static: str) -> Any:
    """Returns the function that binds a primitive, compiled; also as a part of one whose arrays are buffers."""

    def bind(*operands: Any, **params: Any) -> Any:
        return primitive.bind(*as_values(operands), **params)

    return jit(bind, static_argnames=static)


def array_of(value: Any, what: str) -> jax.Array:
    """Returns an array of a number, an array, a buffer, or one that speaks DLPack.

    Raises:
        TraceTypeError: for anything else.
    """
    return jnp.asarray(as_array(to_jax(value), what))


def leaves_of(tree: Any, what: str, length: int, of: str) -> tuple[list[jax.Array], Any]:
    """Returns the arrays of a tree, whose first axes have a length, and the tree's structure.

    Raises:
        TraceTypeError: for a leaf that is no array.
        TraceValueError: for another length.
    """
    found, structure = jax.tree.flatten(as_values(tree))
    leaves = [array_of(leaf, what) for leaf in found]
    for leaf in leaves:
        if leaf.ndim == 0 or leaf.shape[0] != length:
            raise TraceValueError.here(
                f"{what} needs arrays with a first axis as long as {of} ({length}), got shape {leaf.shape}",
                help="give each a first axis of that length",
            )
    return leaves, structure


def keys_of(value: Any, what: str) -> jax.Array:
    """Returns keys: an array with one axis, and a dtype that has an order.

    Raises:
        TraceTypeError: for a dtype without an order.
        TraceValueError: for another number of axes, or too many elements.
    """
    keys = row_of(value, what)
    if keys.dtype.name not in ORDERED:
        is_complex = jnp.issubdtype(keys.dtype, jnp.complexfloating)
        raise TraceTypeError.here(
            f"{what} needs bools, integers or floats, got {keys.dtype}",
            help="sort by a real number that you make of it: `jnp.abs(z)`" if is_complex else "convert it by `.astype`",
        )
    return keys


def row_of(value: Any, what: str) -> jax.Array:
    """Returns an array with one axis.

    Raises:
        TraceValueError: for another number of axes, or too many elements.
    """
    row = array_of(value, what)
    if row.ndim != 1:
        raise TraceValueError.here(
            f"{what} needs an array with one axis, got shape {row.shape}",
            help="map rows of a matrix by `jax.vmap`, or flatten the array by `.reshape(-1)`",
        )
    if row.shape[0] > MOST_ELEMENTS:
        raise TraceValueError.here(
            f"{what} takes up to {MOST_ELEMENTS} elements, got {row.shape[0]}", help="take it in parts"
        )
    return row


def count_of(value: Any, what: str, least: int = 0, most: int = MOST) -> int:
    """Returns a static number from `least` to `most`.

    Raises:
        TraceTypeError: for anything but a static integer.
        TraceValueError: if it is too small or too large.
    """
    if not is_static_int(value):
        raise TraceTypeError.here(
            f"{what} needs a static integer, got {shown(value)}",
            help="a shape cannot depend on data: give the largest number, as a Python int",
        )
    if not least <= value <= most:
        raise TraceValueError.here(
            f"{what} needs {least} to {most}, got {value}", help="give a number in this range"
        )
    return int(value)
