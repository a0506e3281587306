"""JAX's linearisation of one lane, cut into what its values need and what is linear in its tangents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax

from qdtrace.frozen import frozen
from qdtrace.trace import compat
from qdtrace.trace.dependence import dependent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@frozen
class Linearised:
    """A function of one lane in two parts, which residuals join."""

    values: Any
    """The jaxpr of the results and the residuals; constants of the function come before its operands."""
    constants: tuple[Any, ...]
    linear: Callable[..., list[Any]]
    """A function of the residuals and the tangents, which gives the results' tangents."""


def linearised(jaxpr: Any, moves: Sequence[bool]) -> Linearised:
    """Returns the two parts for tangents of the operands that move.

    What depends on no operand (masks of triangles, say) is no residual: it is made again where it is read.
    """
    f = _without_calls(jaxpr)
    opened = compat.open_jaxpr(jaxpr)
    structure: list[Any] = []

    def values(*xs: Any) -> list[Any]:
        def moved(*ys: Any) -> list[Any]:
            left = iter(ys)
            return list(f(*(next(left) if m else x for m, x in zip(moves, xs, strict=True))))

        outs, linear = jax.linearize(moved, *(x for m, x in zip(moves, xs, strict=True) if m))
        residuals, tree = jax.tree.flatten(linear)
        structure[:] = [tree]
        return [*outs, *residuals]

    closed = jax.make_jaxpr(values)(*(v.aval for v in opened.invars))
    made = compat.open_jaxpr(closed)
    count = len(opened.outvars)
    residuals: list[Any] = made.outvars[count:]
    given = dependent(made, [*made.invars, *made.constvars])
    variables = [v for v in residuals if isinstance(v, compat.Var)]
    fixed = [v for v in variables if v not in given]
    constants = compat.function_of(compat.without_dead_code(compat.jaxpr_of(made.eqns, [], fixed)))
    kept = [v for v in variables if v in given]

    def linear(*xs: Any) -> list[Any]:
        known, again = iter(xs), iter(constants())
        found = [
            v.val if not isinstance(v, compat.Var) else next(known) if v in given else next(again) for v in residuals
        ]
        return list(jax.tree.unflatten(structure[0], found)(*known))

    lane = compat.jaxpr_of(made.eqns, [*made.constvars, *made.invars], [*made.outvars[:count], *kept])
    return Linearised(lane, tuple(compat.constants_of(closed)), linear)


def _without_calls(jaxpr: Any) -> Callable[..., list[Any]]:
    """Returns the function of a jaxpr, whose calls of `jax.jit` become what they call."""
    opened, constants = compat.open_jaxpr(jaxpr), compat.constants_of(jaxpr)

    def run(*xs: Any) -> list[Any]:
        known: dict[Any, Any] = dict(zip((*opened.constvars, *opened.invars), (*constants, *xs), strict=True))
        value = lambda v: known[v] if isinstance(v, compat.Var) else v.val  # noqa: E731
        for eqn in opened.eqns:
            is_call = eqn.primitive is compat.jit_p
            given = list(map(value, eqn.invars))
            made = _without_calls(compat.called_jaxpr(eqn))(*given) if is_call else compat.bind_eqn(eqn, given)
            known.update(zip(eqn.outvars, made, strict=True))
        return list(map(value, opened.outvars))

    return run
