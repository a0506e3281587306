"""Calls in a `jax.vmap` that is itself called directly: the number of elements is a length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
from jax.interpreters import batching

from qdtrace.frozen import frozen
from qdtrace.lengths.traced import flat_results
from qdtrace.trace import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.compose.staged import Programs

    Staging = Callable[[Programs], Callable[..., Any]]

results_p = compat.Primitive("qd_mapped_results")
"""Gives results that are there to the `jax.vmap` around: values, and their axes of elements."""
results_p.multiple_results = True
batching.primitive_batchers[results_p] = lambda operands, _, values, axes: (values, axes)


@jax.tree_util.register_pytree_node_class
@frozen(eq=False)
class Results:
    """Results of a call for all elements: those of each element along first axes, and those that all have."""

    values: tuple[Any, ...]
    axes: tuple[int | None, ...]
    tree: Any

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """Returns the values, and what says which they are."""
        return self.values, (self.axes, self.tree)

    @classmethod
    def tree_unflatten(cls, form: Any, values: Sequence[Any]) -> Results:
        """Returns results of such a form."""
        return cls(tuple(values), *form)

    def as_mapped(self, leaves: Sequence[Any]) -> Any:
        """Returns the results of one element, in the `jax.vmap` that `leaves` of arguments come from."""
        found = results_p.bind(*leaves, values=self.values, axes=self.axes)
        return jax.tree.unflatten(self.tree, found)


def with_axes(leaves: Sequence[Any]) -> list[tuple[Any, int | None]] | None:
    """Returns each value with the axis that a `jax.vmap` maps; None unless one without a name is all that is around."""
    trace, env = compat.trace_ctx.trace, compat.trace_ctx.axis_env
    is_all = compat.eval_trace is not None and getattr(trace, "parent_trace", None) is compat.eval_trace
    if not is_all or not hasattr(trace, "to_batch_info") or env.axis_sizes or env.spmd_axis_names:
        return None
    return list(map(trace.to_batch_info, leaves))


def mapped_staging(staging: Staging, structure: Any, axes: Sequence[int | None]) -> Staging:
    """Returns the function that stages a call for all elements at once, on leaves of arguments."""

    def staged_for_all(programs: Programs) -> Callable[..., Any]:
        staged = jax.jit(staging(programs))

        def for_all(*leaves: Any) -> Results:
            common: list[tuple[Any, int | None]] = []
            tree: Any = None

            def one(*leaves: Any) -> list[Any]:
                nonlocal tree
                found, tree = flat_results(staged, leaves, structure)
                common[:] = map(compat.trace_ctx.trace.to_batch_info, found)
                return [x for x, (_, axis) in zip(found, common, strict=True) if axis is not None]

            mapped = iter(jax.vmap(one, tuple(axes))(*leaves))
            values = [x if axis is None else next(mapped) for x, axis in common]
            return Results(tuple(values), tuple([axis and 0 for _, axis in common]), tree)

        return for_all

    return staged_for_all
