"""Loads of one iteration that meet in a term, as the equations of its derivatives tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.sparse.local import function_of_entries
from qdtrace.sparse.reading import type_of
from qdtrace.trace import compat
from qdtrace.trace.tree import body_of

if TYPE_CHECKING:
    from qdtrace.sparse.gathering import Gathering
    from qdtrace.sparse.layouts import Touched
    from qdtrace.sparse.reading import Reading


def which_meet(reading: Reading, touched: Touched, walk: Gathering, *, is_second: bool) -> Any:
    """Returns bools of shape [loads, loads]: whether one gradient depends on the other load, through others too; of
    first derivatives [writes, loads]: whether what is written depends on the load.

    Blocks of the first kind are whole terms, so that a projection of a term stays in them.
    """
    types = [jax.ShapeDtypeStruct(x.shape, type_of(reading.handle).dtype) for x in touched.loads]

    written = function_of_entries(walk, body_of(touched.region).eqns)

    def term(*entries: Any) -> Any:
        return sum(jnp.sum(x) for x in written(*entries))

    if not is_second:
        return _depends(jax.make_jaxpr(written)(*types))
    meets = _depends(jax.make_jaxpr(jax.grad(term, tuple(range(len(types)))))(*types))
    meets |= meets.T
    for k in range(len(types)):  # Warshall: who meets one through k
        meets |= np.outer(meets[:, k], meets[k])
    return meets


def _depends(made: Any) -> Any:
    """Returns bools of shape [results, inputs]: whether a result is computed of an input."""
    jaxpr = compat.open_jaxpr(made)
    none = np.zeros(len(jaxpr.invars), bool)
    found: dict[Any, Any] = dict(zip(jaxpr.invars, np.eye(len(jaxpr.invars), dtype=bool), strict=True))

    def of(atom: Any) -> Any:
        return none if isinstance(atom, compat.Literal) else found.get(atom, none)

    for eqn in jaxpr.eqns:
        every = np.any([none, *map(of, eqn.invars)], axis=0)
        found.update(dict.fromkeys(eqn.outvars, every))
    return np.stack([of(atom) for atom in jaxpr.outvars]) if jaxpr.outvars else none[None][:0]
