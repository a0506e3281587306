"""Says which arguments a lane copies before its loops: on a CPU, matrices that these multiply in every trip.

An argument has a lane's elements side by side, so the lanes of a vector gather each of them from places far apart. A
copy has the lanes side by side; it is made once (docs/design/0055).
"""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from qdtrace.lanes.plan import IN_PLACE
from qdtrace.trace import compat

STAGED = 4096
"""The most elements of a matrix that a lane copies because its loops multiply it: a second cache holds 16 of them."""
FEW_TRIPS = 4
"""The trips of a loop from which on a copy pays."""


def most_copied(jaxpr: Any) -> list[int]:
    """Returns the most elements of which a lane makes a copy on this machine, for each argument of its jaxpr."""
    opened = compat.open_jaxpr(jaxpr)
    often = _multiplied_in_loops(opened) if jax.default_backend() == "cpu" else set[Any]()
    return [STAGED if v in often else IN_PLACE for v in opened.invars]


def _multiplied_in_loops(jaxpr: Any) -> set[Any]:
    """Returns the variables that a loop of a jaxpr reads in each trip, and multiplies something of their shape."""
    found: set[Any] = set()
    for eqn in jaxpr.eqns:
        called = compat.called_jaxpr(eqn)
        if called is not None:
            opened = compat.open_jaxpr(called)
            often = _multiplied_in_loops(opened)
            found.update(v for v, own in zip(eqn.invars, opened.invars, strict=True) if own in often)
        elif (count := _constants(eqn)) > 0:
            products = [e for e in compat.all_eqns((eqn,)) if e.primitive is lax.dot_general_p]
            shapes = {_sides(v) for e in products for v in e.invars}
            own = (v for v in eqn.invars[:count] if isinstance(v, compat.Var))
            found.update(v for v in own if len(_sides(v)) > 1 and _sides(v) in shapes)
    return found


def _constants(eqn: Any) -> int:
    """Returns how many operands of a loop are the same in each of its trips, of which there may be many."""
    if eqn.primitive is lax.while_p:
        return eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]
    if eqn.primitive is lax.scan_p and eqn.params["length"] >= FEW_TRIPS:
        return compat.scan_counts(eqn.params)[0]
    return 0


def _sides(v: Any) -> tuple[int, ...]:
    """Returns the sides of an array, in any order: it may be multiplied transposed."""
    return tuple(sorted(v.aval.shape))
