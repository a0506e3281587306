"""Functions with a derivative rule of their own that hold loops, cells or stores of this package.

Where such a function is called in a body it is inlined, and the rule is not there any more when derivatives are made:
each result passes through an identity whose own rule refuses tangents. In control flow of JAX the rule is there, but
runs Python when the trace is over. Values are those of the function, and nothing is differentiated in another way than
the user said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from jax.custom_derivatives import custom_jvp_call_p

from qdtrace.errors import GradientError
from qdtrace.trace import compat
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from jax.core import ShapedArray

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import JaxprEqn

RULED = ("custom_jvp_call", "custom_vjp_call")
"""Calls of functions with a derivative rule."""


def without_tangents(call: JaxprEqn, value: Any) -> Any:
    """Returns an equation that gives a result of an inlined call, and refuses tangents of it."""
    aval: ShapedArray = value.aval
    inner = compat.open_jaxpr(call.params["call_jaxpr"])
    loc = next((loc for e in (call, *inner.eqns) if (loc := eqn_loc(e)) is not None), None)
    identity = _identity(refused_rule(call, loc))
    like = jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)
    (eqn,) = jax.make_jaxpr(identity)(like).jaxpr.eqns
    return eqn.replace(invars=[value], outvars=[compat.new_var(value)], source_info=call.source_info)


def has_own_primal(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is a call of a function whose rule for forward mode returns another value than a call
    of that function: one by a formula of its own. Those of JAX's functions are taken for the same."""
    if eqn.primitive is not custom_jvp_call_p or compat.described(eqn.params["call_jaxpr"])[1]:
        return False
    operands = list(dict.fromkeys(v for v in eqn.invars if not isinstance(v, compat.Literal)))
    given = [bool(jnp.issubdtype(v.aval.dtype, jnp.inexact)) for v in operands]
    try:
        made, _, _ = compat.jvp_of(compat.jaxpr_of([eqn], operands, eqn.outvars), given)
    except Exception:  # it is told where a derivative is made
        return False
    name = compat.described(eqn.params["call_jaxpr"])
    calls = [e for e in made.eqns if e.primitive.name in RULED]
    own = {v for e in calls if compat.described(e.params["call_jaxpr"]) == name for v in e.outvars}
    return any(v not in own for v in made.outvars[: len(eqn.outvars)])


def refused_rule(call: JaxprEqn, loc: Loc | None) -> GradientError:
    """Returns the error for a tangent of what a function with a rule gives."""
    name, _ = compat.described(call.params["call_jaxpr"])
    return GradientError(
        f"the derivative rule of `{name}` cannot be asked: the function has loops, cells or stores of this package",
        loc=loc,
        help="write it with lax.fori_loop, lax.while_loop or lax.scan in place of qd.range and qd.while_, and with "
        "values in place of qd.local; or give the rule to a function that calls the one made by qd.jit",
    )


def _identity(error: GradientError) -> Callable[[object], object]:
    def refused(*_: object) -> NoReturn:
        raise error

    out = jax.custom_jvp(lambda x: x)
    out.defjvp(refused)
    return out
