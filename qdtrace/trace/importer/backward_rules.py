"""Tangents of `jax.custom_vjp` functions, which are known by their transpose alone: the backward function of the rule.

JAX writes `custom_lin(residuals, tangents)` for them. The value is taken as zero, as that of tangents is in a
transpose, and forward mode is refused. Where arrays are too large for registers, the function is the transpose of the
backward function that JAX makes, if that is linear, and goes on step by step.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import jax
import numpy as np

from qdtrace.errors import GradientError
from qdtrace.ir.program import literal
from qdtrace.trace import compat
from qdtrace.trace.dtypes import mode_for
from qdtrace.trace.importer.registry import rule
from qdtrace.trace.importer.transposed_rules import (
    MOST,
    TransposedRule,
    atoms_within,
    is_inexact,
    tied,
    uses_a_traced_value,
    width,
)
from qdtrace.trace.importer.values import array_from
from qdtrace.trace.rules_along import RuleAlong
from qdtrace.trace.zero_at_zero import zero_results

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from jax.typing import ArrayLike

    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Value
    from qdtrace.trace.jaxprs import Params, Shaped

MOST_TIES = 1 << 20
"""Most operands of the equations of one backward function: each result has all of them."""


def _constant(atom: compat.Literal) -> ArrayLike:
    value = np.asarray(atom.val, atom.aval.dtype)[()]
    return bool(value) if value.dtype == np.bool_ else value


@rule("custom_lin", takes_all="the rule is made of the whole equation")
def custom_lin(imp: Importer, eqn: JaxprEqn, *operands: Value, **params: Any) -> list[Value]:
    """Returns zeros, whose adjoints go back by the backward function."""
    name, outs = compat.name_of_rule(params), params["out_avals"]
    avals = [v.aval for v in eqn.invars]
    taken, given = ([width(a) for a in some] for some in (avals, outs))
    # a backward function may ask which value a constant has
    known = {k: _constant(v) for k, v in enumerate(eqn.invars) if isinstance(v, compat.Literal)}
    if max((*taken, *given)) > MOST or sum(taken) * sum(given) > MOST_TIES:
        return _step_by_step(imp, params, avals, operands, known)
    atoms = atoms_within(imp, operands, name, MOST)
    dtypes = [imp.dtype_of(a) if is_inexact(a) else imp.index_dtype for a in outs]
    values = [array_from(itertools.repeat(literal(0, d)), a) for d, a in zip(dtypes, outs, strict=True)]
    return tied(imp, values, outs, atoms, _backward_rule(imp, params, avals, known))


def _step_by_step(
    imp: Importer, params: Params, avals: Sequence[Shaped], operands: Sequence[Value], known: dict[int, ArrayLike]
) -> list[Value]:
    """Returns the linear function whose transpose is the backward function: it is transposed again step by step.

    Raises GradientError if that is not linear in the cotangents.
    """
    outs, count = params["out_avals"], params["num_res"]
    real = [k for k, a in enumerate(outs) if is_inexact(a)]
    likes = [jax.ShapeDtypeStruct(outs[k].shape, outs[k].dtype) for k in real]

    def backward(residuals: Sequence[jax.Array], asked: Sequence[jax.Array]) -> list[jax.Array]:
        given = dict(zip(real, asked, strict=True))
        dense = [given.get(k, np.zeros(a.shape, jax.dtypes.float0)) for k, a in enumerate(outs)]
        return compat.transposed(params, [known.get(k, x) for k, x in enumerate(residuals)], dense)

    def forward(*given: jax.Array) -> list[jax.Array]:
        transposed = jax.linear_transpose(lambda *asked: backward(given[:count], asked), *likes)
        found = dict(zip(real, transposed(list(given[count:])), strict=True))
        return [found.get(k, np.zeros(a.shape, imp.index_dtype.numpy)) for k, a in enumerate(outs)]

    name = compat.name_of_rule(params)
    try:
        with mode_for(a.dtype for a in avals):
            closed = jax.make_jaxpr(backward)(avals[:count], likes)
            if not all(zero_results(closed, [k >= count for k in range(count + len(likes))])):
                raise TypeError("it may add a number, or rounds to integers")
            found = jax.make_jaxpr(forward)(*[jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
    except jax.errors.UnexpectedTracerError:
        raise uses_a_traced_value(name, imp.here()) from None
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        raise GradientError(
            f"`{name}` has a jax.custom_vjp rule for arrays that are too large for registers: "
            "its backward function needs to be linear in the cotangents there, got one that JAX does not transpose",
            loc=imp.here(),
            help="take jax.grad inside of the lane or loop, or call it on arrays of at most 256 elements",
        ) from error
    return imp.call(found, operands)


def _backward_rule(
    imp: Importer, params: Params, avals: Sequence[Shaped], known: dict[int, ArrayLike]
) -> TransposedRule:
    """Returns the transpose that a backward function gives; some operands are `known` by their numbers."""
    outs, count, bwd = params["out_avals"], params["num_res"], params["bwd"]

    def backward(
        _: Sequence[int], operands: Sequence[jax.Array], cotangents: Sequence[jax.Array]
    ) -> Sequence[jax.Array]:
        left = iter(cotangents)
        dense = [next(left) if is_inexact(a) else np.zeros(a.shape, jax.dtypes.float0) for a in outs]
        return compat.transposed(params, [known.get(k, x) for k, x in enumerate(operands[:count])], dense)

    found = TransposedRule(compat.name_of_rule(params), avals, outs, backward, imp, tangents=len(avals) - count)
    if isinstance(bwd, RuleAlong):
        inner, first = bwd.params, bwd.params["num_res"]
        lower = [*avals[:first], *avals[count:][: inner["in_zeros"].count(False)]]
        found.along = bwd, _backward_rule(imp, inner, lower, {k: v for k, v in known.items() if k < first})
    return found
