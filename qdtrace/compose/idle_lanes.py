"""Idle lanes of `jax.vmap`, which run on the operands of an active lane.

If lanes leave a `lax.while_loop` at different times, JAX runs its body for all of them as long as one goes on; if they
take different branches of a `lax.cond`, it runs each branch for all; then it selects. In jnp that does no harm, as an
index outside of an array is clamped. A call of a program would fail: an idle lane may have left the range of indices
for which the body is valid. So here its operands are those of an active lane, and a branch that no lane takes does not
run. Loops and conditions without calls that may fail are left to JAX.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching

from qdtrace.ir.faults import may_fail
from qdtrace.trace import compat
from qdtrace.trace.compat import Primitive

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from jax import Array

    from qdtrace.trace.compat import Jaxpr
    from qdtrace.trace.jaxprs import AnyJaxpr, ClosedJaxpr

    Axes = Sequence[int | None]
    Rule = Callable[..., object]
    Branches = Sequence[ClosedJaxpr]

busy_p = Primitive("qd_busy")
"""`busy(needed, *operands)` returns the operands; an idle lane gets those of a lane where `needed` holds."""
busy_p.multiple_results = True
somewhere_p = Primitive("qd_somewhere")
"""`somewhere(condition)` returns whether a condition holds in some lane."""


def _busy_lanes(operands: Sequence[Array], dims: Axes) -> tuple[list[Array], Axes]:
    needed, *values = operands
    if dims[0] is None:
        return values, dims[1:]
    first = jnp.argmax(needed)
    return [_chosen(needed, first, x, d) for x, d in zip(values, dims[1:], strict=True)], dims[1:]


def _chosen(needed: Array, first: Array, value: Array, axis: int | None) -> Array:
    if axis is None:
        return value
    one = jax.lax.dynamic_index_in_dim(value, first, axis)
    shape = [n if k == axis else 1 for k, n in enumerate(value.shape)]
    return jnp.where(needed.reshape(shape), value, one)


busy_p.def_abstract_eval(lambda needed, *values: list(values))
somewhere_p.def_abstract_eval(lambda condition: condition)
batching.primitive_batchers[busy_p] = _busy_lanes
batching.primitive_batchers[somewhere_p] = lambda operands, _: (jnp.any(operands[0]), None)


def _calls(jaxprs: Sequence[AnyJaxpr]) -> bool:
    """Returns whether jaxprs call a program that may fail."""
    return any(_may_fail(compat.open_jaxpr(j)) for j in jaxprs)


@functools.lru_cache(maxsize=1024)
def _may_fail(jaxpr: Jaxpr) -> bool:
    for eqn in jaxpr.eqns:
        if (staged := eqn.params.get("staged")) is not None:
            if may_fail(staged.program.all_eqns) and may_fail(staged.canonical.all_eqns):
                return True
        elif eqn.primitive.name.startswith("qd_") or _calls(compat.inner_jaxprs(eqn)):
            return True
    return False


def _while_rule(usual: Rule) -> Rule:
    def rule(axis: object, operands: Sequence[Array], dims: Axes, **params: Any) -> object:
        test, step = params["cond_jaxpr"], params["body_jaxpr"]
        if all(d is None for d in dims) or not _calls([step]):  # JAX asks for loops that do not differ, too
            return usual(axis, operands, dims, **params)
        tested, used = params["cond_nconsts"], params["body_nconsts"]

        def body(*values: Array) -> Sequence[Array]:
            fixed, rest = values[:tested], values[tested:]
            (goes_on,) = compat.function_of(test)(*fixed, *rest[used:])
            return compat.function_of(step)(*busy_p.bind(jnp.any(goes_on), *rest))

        closed = jax.make_jaxpr(body)(*test.in_avals[:tested], *step.in_avals)
        both = tested + used
        params |= {"body_jaxpr": closed, "body_nconsts": both}
        return usual(axis, [*operands[:tested], *operands], [*dims[:tested], *dims], **params)

    return rule


def _cond_rule(usual: Rule) -> Rule:
    def rule(axis: object, operands: Sequence[Array], dims: Axes, *, branches: Branches, **params: object) -> object:
        if dims[0] is None or "branches_platforms" in params or not _calls(branches):
            return usual(axis, operands, dims, branches=branches, **params)
        index = compat.array_type((), operands[0].dtype, [jax.typeof(operands[0])])
        made = [jax.make_jaxpr(_taken(k, b))(index, *b.in_avals) for k, b in enumerate(branches)]
        return usual(axis, [operands[0], *operands], [dims[0], *dims], branches=tuple(made), **params)

    return rule


def _taken(number: int, branch: ClosedJaxpr) -> Callable[..., Sequence[Array]]:
    """Returns a branch that runs for the lanes that take it only."""

    def run(index: Array, *operands: Array) -> Sequence[Array]:
        taken = index == number
        values, function = busy_p.bind(taken, *operands), compat.function_of(branch)
        if not all(isinstance(a.dtype, np.dtype) and not compat.varying(a) for a in branch.out_avals):
            return function(*values)
        nothing = [jnp.zeros(a.shape, a.dtype) for a in branch.out_avals]
        return jax.lax.cond(somewhere_p.bind(taken), function, lambda *_: nothing, *values)

    return run


RULES = {
    primitive: rule(batching.fancy_primitive_batchers[primitive])
    for primitive, rule in ((jax.lax.while_p, _while_rule), (jax.lax.cond_p, _cond_rule))
}
"""Batching rules that replace JAX's own for its loops and conditions."""
