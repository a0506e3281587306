"""Loads of one iteration that meet in a term, as the equations of its derivatives tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.sparse.local import function_of_entries
from qdtrace.sparse.reading import type_of
from qdtrace.trace import compat
from qdtrace.trace.dependence import dependent, mask_of
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
    return _closed(meets | meets.T)


def _closed(meets: Any) -> Any:
    """Returns which loads meet, through others too."""
    for k in range(len(meets)):  # Warshall: who meets one through k
        meets = meets | np.outer(meets[:, k], meets[k])
    return meets


def _depends(made: Any) -> Any:
    """Returns bools of shape [results, inputs]: whether a result is computed of an input."""
    jaxpr = compat.open_jaxpr(made)
    columns = [mask_of(jaxpr.outvars, dependent(jaxpr, [v])) for v in jaxpr.invars]
    return np.array(columns, bool).reshape(len(jaxpr.invars), len(jaxpr.outvars)).T


def is_repeated(columns: Any) -> Any:
    """Returns whether each iteration loads some block more than once; `columns` has blocks by iterations and loads."""
    ordered = np.sort(columns, axis=1)
    return ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1)


def with_repeated(meets: Any, columns: Any) -> Any:
    """Returns which loads meet in each iteration, where those of one block meet whom either meets: a block is one
    variable of a term, however often it is loaded. It is `meets` itself if that changes nothing."""
    rows = is_repeated(columns)
    if meets.all() or not rows.any():
        return meets
    own, alone = np.diag(meets), -1 - np.arange(len(meets))
    columns = np.where(own & (columns[rows] >= 0), columns[rows], alone)  # what is linear meets nothing
    firsts, which = np.unique(_firsts(columns), axis=0, return_inverse=True)
    found = np.repeat(meets[None], len(rows), axis=0)
    found[rows] = np.stack([_closed(meets | (f[:, None] == f)) for f in firsts])[which.ravel()] & own & own[:, None]
    return found


def _firsts(columns: Any) -> Any:
    """Returns for each load the first one of the same block in its iteration."""
    order = np.argsort(columns, axis=1, kind="stable")
    ordered = np.take_along_axis(columns, order, axis=1)
    begins = np.zeros(columns.shape, int)
    begins[:, 1:] = np.where(ordered[:, 1:] != ordered[:, :-1], np.arange(1, columns.shape[1]), 0)
    found = np.empty_like(begins)
    np.put_along_axis(found, order, np.take_along_axis(order, np.maximum.accumulate(begins, axis=1), axis=1), axis=1)
    return found
