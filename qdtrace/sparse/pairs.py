"""Pairs of blocks that iterations touch: once each and in order, and their numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import scipy.sparse

from qdtrace.api import jit
from qdtrace.trace.allocation import empty
from qdtrace.trace.local import local
from qdtrace.trace.loops import range as qd_range
from qdtrace.trace.loops import while_

if TYPE_CHECKING:
    from collections.abc import Sequence


def merged(every: Sequence[tuple[Any, Any, Any]], shape: tuple[int, int]) -> tuple[Any, Any]:
    """Returns the pairs of rows and columns that meet, once each and in order, as `indptr` and `indices`."""
    pairs: list[Any] = []
    for rows, columns, meets in every:
        r, c = np.broadcast_arrays(np.asarray(rows)[:, :, None], np.asarray(columns)[:, None, :])
        kept = (r >= 0) & (c >= 0) & meets
        pairs.append([x[kept] for x in (r, c)] if not kept.all() else [x.ravel() for x in (r, c)])
    r, c = (np.concatenate([p[k] for p in pairs] or [np.zeros(0, np.int32)]) for k in (0, 1))
    if not r.size:
        return np.zeros(shape[0] + 1, np.int32), np.zeros(0, np.int32)
    found = scipy.sparse.csr_array((np.ones(r.size, np.int8), (r, c)), shape=shape)
    found.sort_indices()
    return found.indptr.astype(np.int32), found.indices.astype(np.int32)


@jit
def ranks(rows: Any, columns: Any, indptr: Any, indices: Any) -> Any:
    """Returns the numbers of pairs of blocks, by a search in the columns of a row."""
    (count, height), width = rows.shape, columns.shape[1]
    out = empty((count, height, width), jnp.int32)
    for t in qd_range(count * height * width):
        k, a, b = t // (height * width), t // width % height, t % width
        row, column = rows[k, a], columns[k, b]
        low, high = local(indptr[jnp.maximum(row, 0)]), local(indptr[jnp.maximum(row, 0) + 1])
        for _ in while_(lambda low=low, high=high: low.value < high.value):
            middle = (low.value + high.value) // 2
            is_below = indices[middle] < column
            low.value, high.value = jnp.where(is_below, middle + 1, low.value), jnp.where(is_below, high.value, middle)
        out[k, a, b] = jnp.where((row < 0) | (column < 0), -1, low.value)
    return out
