"""Arguments that are arrays of other libraries, by DLPack: JAX's arrays, or NumPy's where JAX refuses them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np

from qdtrace.compose.byte_order import is_foreign, native
from qdtrace.errors import TraceTypeError

if TYPE_CHECKING:
    from typing import Any

    from jax import Array


T = TypeVar("T")


def convert_foreign(tree: T) -> tuple[T, bool]:
    """Returns a pytree with arrays of other libraries as JAX arrays and NumPy's in the byte order of this machine, and
    whether one was changed."""
    changed = False

    def one(x: Any) -> object:
        nonlocal changed
        if is_foreign(x):
            changed = True
            return native(x)
        if hasattr(x, "__dlpack__") and not isinstance(x, jax.Array | np.ndarray | np.generic):
            changed = True
            return _from_dlpack(x)
        return x

    return jax.tree.map(one, tree), changed


def _from_dlpack(x: Any) -> Array | np.ndarray:
    """Returns an array of another library as one of JAX, or of NumPy where its strides leave gaps, which JAX refuses.

    Raises TraceTypeError for one that neither takes, such as a tensor of torch that requires a gradient.
    """
    refusals = BufferError, RuntimeError, TypeError, ValueError
    try:
        return jax.dlpack.from_dlpack(x)
    except refusals as error:
        with contextlib.suppress(*refusals):
            return np.from_dlpack(x)
        kind = f"{type(x).__module__}.{type(x).__qualname__}"
        raise TraceTypeError.here(
            f"an argument of type {kind} cannot be read by DLPack: {str(error).splitlines()[0]}",
            help="hand over a contiguous array without a gradient: `t.detach().contiguous()` in torch, "
            "`cupy.ascontiguousarray(a)` in CuPy; qd.torch(f) takes tensors with gradients",
        ) from None


def to_jax(tree: T) -> T:
    """Returns the pytree with arrays that JAX takes: see `convert_foreign`."""
    return convert_foreign(tree)[0]


def devices_of(tree: object) -> str:
    """Returns the devices that the arrays of a pytree are on, in words."""
    found = {str(d) for x in jax.tree.leaves(tree) if isinstance(x, jax.Array) for d in x.devices()}
    return ", ".join(sorted(found))
