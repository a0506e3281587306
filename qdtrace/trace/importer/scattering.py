"""scatter and its combining forms: updates at traced positions with JAX's bounds rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.ir.program import Literal
from qdtrace.trace.importer.indexing import Blocks, each, is_mode, put
from qdtrace.trace.importer.memory import CHAIN
from qdtrace.trace.importer.reductions import combiner
from qdtrace.trace.importer.registry import PROMISE, rule
from qdtrace.trace.importer.scalars import TRUE
from qdtrace.trace.importer.values import rank0
from qdtrace.trace.physical import is_pair

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import PrivateArray, Value

    Join = Callable[[Callable[[], Any], Any], Any]
    """Function that returns the value to store, given how to load the element and the update."""


_PROMISES = {"unique_indices": PROMISE, "indices_are_sorted": PROMISE}


@rule("scatter", assumes={"update_consts": ()}, ignores=_PROMISES)
def replace(
    imp: Importer, eqn: Any, x: Value, indices: Value, updates: Value, *,
    dimension_numbers: Any, mode: Any, update_jaxpr: Any,
) -> Value:  # fmt: skip
    """Returns the array with updates, or (`lax.scatter_apply`) functions of its elements, at traced positions."""
    if update_jaxpr is None or (not update_jaxpr.eqns and update_jaxpr.outvars[0] is update_jaxpr.invars[1]):
        join: Join = lambda old, new: new  # noqa: E731
    else:
        join = lambda old, new: imp.call(update_jaxpr, [rank0(old()), rank0(new)])[0][()]  # noqa: E731
    return scatter(imp, eqn, x, indices, updates, dimension_numbers, mode, join)


@rule(
    "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub", ignores={
        **_PROMISES, **dict.fromkeys(("update_jaxpr", "update_consts"), "the name says how elements are combined"),
    },
)  # fmt: skip
def combine(
    imp: Importer, eqn: Any, x: Value, indices: Value, updates: Value, *, dimension_numbers: Any, mode: Any
) -> Value:
    """Returns the array with updates combined into it at traced positions."""
    both = combiner(imp, eqn.primitive.name.removeprefix("scatter-"), eqn.outvars[0].aval)
    join: Join = lambda old, new: both(old(), new)  # noqa: E731
    return scatter(imp, eqn, x, indices, updates, dimension_numbers, mode, join)


def scatter(
    imp: Importer, eqn: Any, x: Value, indices: Value, updates: Value, dims: Any, mode: Any, join: Join
) -> Value:
    """Joins updates with elements at traced positions; out-of-bounds ones are dropped or clamped."""
    aval = eqn.outvars[0].aval
    clips = is_mode(imp, eqn, mode, "CLIP", ("FILL_OR_DROP", "PROMISE_IN_BOUNDS"))
    blocks = Blocks.of(
        x.shape, updates.ndim, lambda _, k: updates.shape[k], dims.inserted_window_dims, dims.update_window_dims,
        dims.scatter_dims_to_operand_dims, (dims.operand_batching_dims, dims.scatter_indices_batching_dims),
    )  # fmt: skip

    def place(i: Sequence[Any]) -> tuple[list[Any], Any]:
        return blocks.place(imp, indices, i, clips=clips, checks=not clips)

    small = isinstance(x, np.ndarray) and isinstance(updates, np.ndarray) and isinstance(indices, np.ndarray)
    if small and _by_selects(dims, x, indices, updates):
        out = x.copy()
        for i in np.ndindex(*updates.shape):
            where, valid = place([imp.index(k) for k in i])
            if valid is TRUE or not (type(valid) is Literal and not valid.value):
                put(imp, out, where, lambda old, new=updates[i]: join(lambda: old, new), valid)
        return out
    target: PrivateArray = imp.own(x, imp.dtype_of(aval), is_pair(aval))
    indices, source = imp.in_memory(indices), imp.in_memory(updates)

    def write(i: Sequence[Any]) -> None:
        where, valid = place(i)

        def store() -> None:
            new = imp.element(source, i)
            imp.store_at(target.var, join(lambda: imp.load_at(target.var, where, target.pair), new), where)

        imp.if_(valid, store)

    each(imp, updates.shape, write)
    return target


def _by_selects(dims: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> bool:
    """Returns whether writing out the possible positions is cheap: constant positions, or few candidates."""
    if all(type(k) is Literal for k in indices.ravel().tolist()):
        return True
    candidates = int(np.prod([x.shape[d] for d in dims.scatter_dims_to_operand_dims]))
    return candidates <= CHAIN and candidates * updates.size <= 4 * CHAIN
