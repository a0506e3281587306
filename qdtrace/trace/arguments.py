"""Operands and results of a traced function: arrays become buffers, buffers and cells become values."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.errors import TraceTypeError, user_loc
from qdtrace.trace.arithmetic import without_enums
from qdtrace.trace.buffers import Buffer, new_buffer
from qdtrace.trace.cells import Cell
from qdtrace.trace.dtypes import is_too_wide
from qdtrace.trace.handles import MemoryHandle
from qdtrace.trace.refs import is_ref, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from typing_extensions import TypeIs

    from qdtrace.trace.context import TraceContext


T = TypeVar("T")


def parameters_of(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Returns the parameters of a function; none of one that does not tell, as functions of C may not."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []


def is_memory(leaf: object) -> TypeIs[MemoryHandle]:
    """Returns whether a value is a handle of memory, which is one leaf here."""
    return isinstance(leaf, MemoryHandle)


def as_values(tree: T) -> T:
    """Returns a tree with the values of buffers and cells of an enclosing trace."""
    return jax.tree.map(lambda x: x.__jax_array__() if is_memory(x) else x, tree, is_leaf=is_memory)


def run_inlined(
    function: Callable[..., object], args: Sequence[object], kwargs: Mapping[str, object], context: TraceContext
) -> object:
    """Calls a function as a part of the one that is traced: it may read buffers that it is given; results are values.

    Outside of loops its arrays are buffers, as in a call.
    """
    args, kwargs = jax.tree.map(lambda x: x.value if isinstance(x, Cell) else x, (args, kwargs), is_leaf=is_memory)
    if not context.in_thread:
        args, kwargs = jax.tree.map(lambda x: x if is_memory(x) else as_buffer(x), (args, kwargs), is_leaf=is_memory)
    given = {id(x.handle): x for x in jax.tree.leaves((args, kwargs), is_leaf=is_memory) if isinstance(x, Buffer)}
    before = context.borrowed, context.inlined
    context.borrowed = before[0] | given
    context.inlined = getattr(function, "__name__", type(function).__name__)
    try:
        return as_values(function(*args, **kwargs))
    finally:
        context.borrowed, context.inlined = before


def as_buffer(leaf: object) -> Any:
    """Returns an array as a buffer with its content; a scalar or a random key as it is."""
    if isinstance(leaf, (jax.Array, np.ndarray)) and leaf.ndim > 0:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            return leaf
        return new_buffer(leaf)
    return without_enums(leaf)


def checked_leaf(leaf: object, name: str) -> object:
    """Returns a leaf of the arguments of a traced function, after a check.

    Raises UnsupportedError for a reference of JAX, and TraceTypeError for what is no array or number and for an array
    of 64 bits outside of the x64 mode, where JAX goes on with 64 bits and what it makes beside it has 32.
    """
    if isinstance(leaf, (bool, int, float, complex, np.generic, np.ndarray, jax.Array, jax.ShapeDtypeStruct)):
        if isinstance(leaf, jax.Array) and is_too_wide(leaf.dtype):
            raise TraceTypeError(
                f"the argument `{name}` needs to be of at most 32 bits outside of the x64 mode, got {leaf.dtype}",
                help="call it where jax_enable_x64 is on, as the array was made, or convert it with .astype",
            )
        if not isinstance(leaf, (np.generic, np.ndarray)) or _is_element_type(leaf.dtype):
            return leaf
        kind = f"an array of {leaf.dtype}"
    elif is_ref(leaf):
        raise refusal(user_loc())
    else:
        kind = type(leaf).__name__
    raise TraceTypeError(
        f"the argument `{name}` needs to be an array, a number or a pytree of them, got {kind}",
        help=f"make it static: qd.jit(f, static_argnames={name.split('.')[0].split('[')[0]!r}), or register its class "
        "with qd.dataclass",
    )


def _is_element_type(dtype: np.dtype) -> bool:
    return dtype == np.bool_ or jnp.issubdtype(dtype, jnp.number)
