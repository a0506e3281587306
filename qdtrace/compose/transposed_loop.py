"""The transpose of a `qd.while_` around tasks, in unknown operands that it is linear in.

The condition must not depend on them, so the trips are known. Then the loop is its own derivative, and its adjoints,
taken where the unknown operands are zero, are the transpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
from jax.interpreters import ad
from jax.lax import scan_p

from qdtrace.compose.call import call_p
from qdtrace.compose.loop_derivative import adjoints_p, is_float
from qdtrace.compose.residuals import derivation
from qdtrace.compose.staged_program import chosen
from qdtrace.errors import GradientError, QdError
from qdtrace.trace import compat
from qdtrace.trace.dependence import dependent, mask_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jax import Array

    from qdtrace.compose.loop_derivative import Loop
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.jaxprs import AnyJaxpr

    Mask = Sequence[bool]


def transpose_of_loop(cotangents: Sequence[Array], *operands: Array, loop: Loop) -> list[Array | None]:
    """Returns the cotangents of the operands that are unknown, None for the others.

    Raises GradientError if the loop is no linear function of them.
    """
    unknown = list(map(ad.is_undefined_primal, operands))
    _refuse_nonlinear(loop, unknown)
    known = [ad.instantiate_zeros(ad.Zero(x.aval)) if u else x for x, u in zip(operands, unknown, strict=True)]
    given = [ad.instantiate_zeros(c) for c, v in zip(cotangents, loop.state, strict=True) if is_float(v)]
    found = iter(adjoints_p.bind(*known, *given, loop=loop, order=0))
    adjoints = [next(found) if is_float(v) else None for v in known]
    return [a if u else None for a, u in zip(adjoints, unknown, strict=True)]


def _refuse_nonlinear(loop: Loop, unknown: Mask) -> None:
    used = len(loop.used)
    types = (*loop.used, *loop.state)
    moved = list(unknown)
    stepped = jax.make_jaxpr(lambda *xs: loop.step(xs[:used], xs[used:]))(*types)
    before: list[bool] = []
    while moved != before:  # what an iteration makes of unknown values is unknown to the next one
        before = moved
        made = _dependent(stepped, moved)
        moved = [*moved[:used], *(a or b for a, b in zip(moved[used:], made, strict=True))]
    tested = jax.make_jaxpr(lambda *xs: loop.test(xs[:used], xs[used:]))(*types)
    if any(_dependent(tested, moved)):
        raise _refused("a condition that depends on them")
    out = moved[used:]
    if not all(is_float(v) for v in chosen(types, moved)):
        raise _refused("integers that depend on them")

    def back(known: Sequence[Array], cotangents: Sequence[Array]) -> object:
        def step(*values: Array) -> list[Array]:
            new, old = iter(values), iter(known)
            whole = [next(new if m else old) for m in moved]
            return list(chosen(loop.step(whole[:used], whole[used:]), out))

        return jax.linear_transpose(step, *chosen(types, moved))(list(cotangents))

    try:
        jax.eval_shape(back, list(chosen(types, (not m for m in moved))), list(chosen(loop.state, out)))
    except QdError:
        raise
    except Exception as error:  # JAX refuses a function that is not linear in many ways
        raise _refused(f"an iteration that JAX has no transpose of ({error})") from None


def _refused(what: str) -> GradientError:
    return GradientError(
        f"needs a qd.while_ around loops that is linear in the unknown operands to be transposed, got {what}",
        help="leave out what is not linear, or transpose jax.linearize(f, x)[1], the derivative at a point x",
    )


def _dependent(closed: AnyJaxpr, moved: Mask) -> list[bool]:
    """Returns the mask of results of a jaxpr that depend on operands in a mask."""
    jaxpr = compat.open_jaxpr(closed)
    return mask_of(jaxpr.outvars, dependent(jaxpr, chosen(jaxpr.invars, moved), _dependent_results))


def _dependent_results(eqn: JaxprEqn, moved: Mask) -> Mask:
    inner = compat.inner_jaxprs(eqn)
    if eqn.primitive is call_p:
        program = eqn.params["staged"].with_rules
        reached = derivation().dependent_variables(program, tuple(chosen(program.params[: len(moved)], moved)))
        return [v in reached for v in program.results]
    if len(inner) == 1 and len(compat.open_jaxpr(inner[0]).invars) == len(moved) and eqn.primitive is not scan_p:
        return _dependent(inner[0], moved)
    return [True] * len(eqn.outvars)
