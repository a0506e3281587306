"""scatter and its combining forms: updates at traced positions with JAX's bounds rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.ir.program import Literal
from qdtrace.trace.importer.indexing import as_index, clamped, each, inside, put, shifted
from qdtrace.trace.importer.memory import CHAIN
from qdtrace.trace.importer.reductions import combiner
from qdtrace.trace.importer.registry import rule
from qdtrace.trace.importer.scalars import TRUE
from qdtrace.trace.importer.values import is_pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import PrivateArray, Value


@rule(
    "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub", "scatter_sub",
    "scatter_add", "scatter_mul", "scatter_min", "scatter_max",
)  # fmt: skip
def scatter(imp: Importer, eqn: Any, x: Value, indices: Value, updates: Value) -> Value:
    """The array with updates put, or combined, at traced positions; out-of-bounds ones are dropped or clamped."""
    dims, aval = eqn.params["dimension_numbers"], eqn.outvars[0].aval
    clips = eqn.params["mode"].name in ("CLIP", "PROMISE_IN_BOUNDS")
    drops = not clips
    name = eqn.primitive.name.replace("_", "-").removeprefix("scatter").removeprefix("-")
    join = combiner(imp, name, aval) if name else (lambda old, new: new)
    batch_axes = [d for d in range(updates.ndim) if d not in dims.update_window_dims]
    skipped = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    window_axes = [d for d in range(x.ndim) if d not in skipped]
    extent = [1] * x.ndim
    for d, u in zip(window_axes, dims.update_window_dims, strict=True):
        extent[d] = updates.shape[u]

    def place(i: Sequence[Any]) -> tuple[list[Any], Any]:
        batch = [i[d] for d in batch_axes]
        window = dict(zip(window_axes, (i[d] for d in dims.update_window_dims), strict=True))
        where: list[Any] = [window.get(d, imp.index(0)) for d in range(x.ndim)]
        valid: Any = TRUE
        for k, d in enumerate(dims.scatter_dims_to_operand_dims):
            start = as_index(imp, imp.element(indices, [*batch, imp.index(k)]))
            last = x.shape[d] - extent[d]
            if drops:
                valid = imp.op("and", valid, inside(imp, start, last))
            start = clamped(imp, start, last) if clips else start
            where[d] = shifted(imp, start, where[d])
        for d, b in zip(dims.operand_batching_dims, dims.scatter_indices_batching_dims, strict=True):
            where[d] = batch[b]
        return where, valid

    small = isinstance(x, np.ndarray) and isinstance(updates, np.ndarray) and isinstance(indices, np.ndarray)
    if small and _by_selects(eqn, x, indices, updates):
        out = x.copy()
        for i in np.ndindex(*updates.shape):
            where, valid = place([imp.index(k) for k in i])
            if valid is TRUE or not (type(valid) is Literal and not valid.value):
                put(imp, out, where, lambda old, new=updates[i]: join(old, new), valid)
        return out
    target: PrivateArray = imp.own(x, imp.dtype_of(aval), is_pair(aval))
    indices, source = imp.in_memory(indices), imp.in_memory(updates)

    def write(i: Sequence[Any]) -> None:
        where, valid = place(i)

        def store() -> None:
            new = imp.element(source, i)
            if name:
                new = join(imp.load(target.var, where, target.pair), new)
            imp.store(target.var, new, where)

        imp.if_(valid, store)

    each(imp, updates.shape, write)
    return target


def _by_selects(eqn: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> bool:
    """True when writing out the possible positions is cheap: constant positions, or few candidates."""
    if all(type(k) is Literal for k in indices.ravel().tolist()):
        return True
    dims = eqn.params["dimension_numbers"]
    candidates = int(np.prod([x.shape[d] for d in dims.scatter_dims_to_operand_dims]))
    return candidates <= CHAIN and candidates * updates.size <= 4 * CHAIN
