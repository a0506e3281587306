"""`lax.fori_loop` up to a number that no code knows: JAX makes a `while` of it, and here it is a `for` again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from jax import lax

from qdtrace.trace import compat

if TYPE_CHECKING:
    from qdtrace.trace.jaxprs import AnyJaxpr, Atom, JaxprEqn

WHOLE = (np.int32, np.int64)
"""Dtypes of the indices of a `for`."""


def is_counted(cond_jaxpr: AnyJaxpr, body_jaxpr: AnyJaxpr, cond_nconsts: int, body_nconsts: int) -> bool:
    """Returns whether a `while` runs while its first carry is below its second, adds 1 to that and leaves this as it
    is."""
    cond, body = map(compat.open_jaxpr, (cond_jaxpr, body_jaxpr))
    if cond_nconsts or len(cond.eqns) != 1 or len(cond.invars) < 2:
        return False
    (test,) = cond.eqns
    at, stop = body.invars[body_nconsts : body_nconsts + 2]
    return (
        test.primitive is lax.lt_p
        and list(test.invars) == cond.invars[:2]
        and list(cond.outvars) == list(test.outvars)
        and at.aval.shape == ()
        and at.aval.dtype in WHOLE
        and body.outvars[1] is stop
        and any(_adds_one(eqn, at) and eqn.outvars[0] is body.outvars[0] for eqn in body.eqns)
    )


def _adds_one(eqn: JaxprEqn, index: Atom) -> bool:
    if eqn.primitive is not lax.add_p or eqn.invars[0] is not index:
        return False
    step = eqn.invars[1]
    return isinstance(step, compat.Literal) and bool(step.val == 1)
