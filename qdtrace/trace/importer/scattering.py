"""scatter and its combining forms: updates at traced positions with JAX's bounds rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.ir.program import Literal
from qdtrace.trace.importer.indexing import Blocks, is_mode, updated
from qdtrace.trace.importer.memory import CHAIN
from qdtrace.trace.importer.reductions import combiner
from qdtrace.trace.importer.registry import PROMISE, rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax.lax import GatherScatterMode, ScatterDimensionNumbers

    from qdtrace.ir.program import Atom
    from qdtrace.trace.compat import Jaxpr, JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.indexing import Join
    from qdtrace.trace.importer.values import Value


_PROMISES = {"unique_indices": PROMISE, "indices_are_sorted": PROMISE}


@rule("scatter", assumes={"update_consts": ()}, ignores=_PROMISES)
def replace(
    imp: Importer, eqn: JaxprEqn, x: Value, indices: Value, updates: Value, *,
    dimension_numbers: ScatterDimensionNumbers, mode: GatherScatterMode, update_jaxpr: Jaxpr | None,
) -> Value:  # fmt: skip
    """Returns the array with updates, or (`lax.scatter_apply`) functions of its elements, at traced positions."""
    if update_jaxpr is None or (not update_jaxpr.eqns and update_jaxpr.outvars[0] is update_jaxpr.invars[1]):
        join: Join = lambda old, new: new  # noqa: E731
    else:
        join = lambda old, new: imp.call_on_scalars(update_jaxpr, [old(), new])[0]  # noqa: E731
    return scatter(imp, eqn, x, indices, updates, dimension_numbers, mode, join)


@rule(
    "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub", ignores={
        **_PROMISES, **dict.fromkeys(("update_jaxpr", "update_consts"), "the name says how elements are combined"),
    },
)  # fmt: skip
def combine(
    imp: Importer,
    eqn: JaxprEqn,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    dimension_numbers: ScatterDimensionNumbers,
    mode: GatherScatterMode,
) -> Value:
    """Returns the array with updates combined into it at traced positions."""
    both = combiner(imp, eqn.primitive.name.removeprefix("scatter-"), eqn.outvars[0].aval)
    join: Join = lambda old, new: both(old(), new)  # noqa: E731
    return scatter(imp, eqn, x, indices, updates, dimension_numbers, mode, join)


def scatter(
    imp: Importer,
    eqn: JaxprEqn,
    x: Value,
    indices: Value,
    updates: Value,
    dims: ScatterDimensionNumbers,
    mode: GatherScatterMode,
    join: Join,
) -> Value:
    """Joins updates with elements at traced positions; out-of-bounds ones are dropped or clamped."""
    clips = is_mode(imp, eqn, mode, "CLIP", ("FILL_OR_DROP", "PROMISE_IN_BOUNDS"))
    blocks = Blocks.of(
        x.shape, updates.ndim, lambda _, k: updates.shape[k], dims.inserted_window_dims, dims.update_window_dims,
        dims.scatter_dims_to_operand_dims, (dims.operand_batching_dims, dims.scatter_indices_batching_dims),
    )  # fmt: skip

    if isinstance(x, np.ndarray) and isinstance(updates, np.ndarray) and isinstance(indices, np.ndarray):
        small, candidates = True, _candidates(dims, x, indices)
    else:
        small, candidates = False, CHAIN + 1
    if not small:
        indices = imp.in_memory(indices)

    def place(i: Sequence[Atom]) -> tuple[list[Atom], Atom]:
        return blocks.place(imp, indices, i, clips=clips, checks=not clips)

    return updated(imp, eqn, x, updates, place, candidates, join)


def _candidates(dims: ScatterDimensionNumbers, x: np.ndarray, indices: np.ndarray) -> int:
    """Returns how many positions may be that of an update."""
    if all(type(k) is Literal for k in indices.ravel().tolist()):
        return 1
    return int(np.prod([x.shape[d] for d in dims.scatter_dims_to_operand_dims]))
