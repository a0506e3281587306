"""Import rules of `jax.debug.print`, `jax.debug.callback` and `jax.debug.breakpoint`: see `ir/tells`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.ir.tells import Site, place_of
from qdtrace.trace import hooks
from qdtrace.trace.dtypes import mode_for
from qdtrace.trace.importer.registry import rule
from qdtrace.trace.importer.values import atoms_of
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from jax.typing import ArrayLike

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value
    from qdtrace.trace.jaxprs import Shaped

PRINT, CALLBACK = "debug_print", "debug_callback"
MOST = 256
"""Most elements of an array that is told."""


def tells(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is a print or a callback."""
    return eqn.primitive.name in (PRINT, CALLBACK)


@rule(PRINT, CALLBACK, takes_all="JAX itself runs the equation, with numbers")
def tell(imp: Importer, eqn: JaxprEqn, *operands: Value, **_: object) -> list[Value]:
    """Hands values of this iteration to Python."""
    imp.locate()
    scalars: list[Atom] = []
    for operand in operands:
        scalars += atoms_of(imp.scalars(operand, f"`jax.{eqn.primitive.name.replace('_', '.')}`", MOST))
    imp.emit("tell", *scalars, site=place_of(_key(eqn), lambda: _site(imp, eqn)), number=0)
    return []


def _key(eqn: JaxprEqn) -> Hashable:
    """Returns a key that is equal for prints that print the same; callbacks are functions that JAX makes anew."""
    types = tuple((v.aval.shape, v.aval.dtype) for v in eqn.invars)
    key = (eqn.primitive.name, tuple(sorted(eqn.params.items(), key=lambda item: item[0])), types)
    try:
        hash(key)
    except TypeError:
        return object()
    return key


def _site(imp: Importer, eqn: JaxprEqn) -> Site:
    avals = [v.aval for v in eqn.invars]
    shapes = tuple((*a.shape, 2) if is_pair(a) else tuple(a.shape) for a in avals)
    dtypes = tuple(imp.dtype_of(a) for a in avals)

    def call(arrays: Sequence[np.ndarray]) -> None:
        with mode_for(a.dtype for a in avals):
            hooks.run_now(eqn, [_whole(x, a) for x, a in zip(arrays, avals, strict=True)])

    is_print = eqn.primitive.name == PRINT
    return Site(call, shapes, dtypes, is_print, not is_print and hooks.is_breakpoint(eqn))


def _whole(array: np.ndarray, aval: Shaped) -> ArrayLike:
    """Returns the array that JAX would hand over: of pairs complex numbers or keys."""
    if not is_pair(aval):
        return array
    if isinstance(aval.dtype, np.dtype):
        return np.ascontiguousarray(array).view(aval.dtype)[..., 0]
    return jax.random.wrap_key_data(jnp.asarray(array), impl="threefry2x32")  # the one kind that graphs have
