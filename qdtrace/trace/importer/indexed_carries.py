"""Finds operands of a jaxpr with traced indices: such a carry is better kept in memory than in scalars."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from jax.lax import while_p

from qdtrace.errors import UnsupportedError
from qdtrace.trace import compat
from qdtrace.trace.forwarding import is_control, operand_maps
from qdtrace.trace.importer.implementations import implementation_of, is_foreign
from qdtrace.trace.importer.registry import TAUGHT

if TYPE_CHECKING:
    from qdtrace.trace.compat import Jaxpr, JaxprEqn, Var
    from qdtrace.trace.jaxprs import AnyJaxpr

_SCATTERS = "scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max"
_INDEXED = {"dynamic_slice": 1, "dynamic_update_slice": 2, "gather": 1, "sort": 1, **dict.fromkeys(_SCATTERS, 1)}
"""Primitives that index their first operand -> the position of their first index."""
_CARRIED_ON = {"dynamic_update_slice", "select_n", *_SCATTERS}


def dynamically_indexed(closed: AnyJaxpr, skip: int) -> list[bool]:
    """Returns, for each operand after the first `skip`, whether a traced index reads or writes it."""
    return list(_indexed(compat.open_jaxpr(closed)))[skip:]


@lru_cache(maxsize=512)
def _indexed(jaxpr: Jaxpr) -> tuple[bool, ...]:
    moving = set(jaxpr.invars)  # variables that are not constants of the trace
    source: dict[Var, set[int]] = {v: {k} for k, v in enumerate(jaxpr.invars)}
    marked: set[int] = set()
    for eqn in jaxpr.eqns:
        operands = [v for v in eqn.invars if not isinstance(v, compat.Literal)]
        if any(v in moving for v in operands):
            moving.update(eqn.outvars)
        name = eqn.primitive.name
        if name in _INDEXED and operands and eqn.invars[0] is operands[0]:
            indices = eqn.invars[_INDEXED[name] :]
            if any(not isinstance(v, compat.Literal) and v in moving for v in indices):
                marked |= source.get(operands[0], set())
        if name in _CARRIED_ON:
            reach = set().union(*(source.get(v, set()) for v in operands if v.aval.shape == eqn.outvars[0].aval.shape))
            source[eqn.outvars[0]] = reach
        inner = compat.called_jaxpr(eqn) or _implementation(eqn)
        if inner is not None or is_control(eqn):
            marked |= _through(eqn, inner, source)
            for out in eqn.outvars:
                same = (source.get(v, set()) for v in operands if v.aval.shape == out.aval.shape and out.aval.shape)
                source[out] = set().union(*same)
    return tuple(k in marked for k in range(len(jaxpr.invars)))


def _implementation(eqn: JaxprEqn) -> AnyJaxpr | None:
    if eqn.primitive.name in TAUGHT or not is_foreign(eqn.primitive):
        return None
    try:
        return implementation_of(eqn)
    except UnsupportedError:  # if it is refused is not decided here
        return None


def _through(eqn: JaxprEqn, called: AnyJaxpr | None, source: dict[Var, set[int]]) -> set[int]:
    """Returns the operands that an inner jaxpr indexes."""
    bodies = [(compat.open_jaxpr(called), range(len(eqn.invars)))] if called is not None else [*operand_maps(eqn)]
    if eqn.primitive is while_p:
        del bodies[0]  # the condition
    hits = [eqn.invars[k] for body, places in bodies for k, hit in zip(places, _indexed(body), strict=False) if hit]
    return set().union(*(source.get(v, set()) for v in hits if not isinstance(v, compat.Literal)))
