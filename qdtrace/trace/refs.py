"""JAX's own mutable arrays (`jax.new_ref`) in a traced function: their content becomes a value, by JAX's own rules.

The function that remains is pure, so that lanes, tasks and derivatives know nothing of references. This happens to the
flat jaxpr, where the body of a loop of this package stands once, in the order of the trace. So a reference may change
only in the body that it was made in: the next iteration would not see the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import TraceValueError, UnsupportedError
from qdtrace.trace import compat, markers
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import JaxprEqn, Var
    from qdtrace.trace.jaxprs import AnyJaxpr, Atom


def without_refs(closed: AnyJaxpr) -> AnyJaxpr:
    """Returns a closed jaxpr without references, itself if it has none.

    Raises UnsupportedError for a reference that was made outside of the function, and TraceValueError for one that
    changes in the body of another loop or condition than the one it was made in.
    """
    jaxpr = compat.open_jaxpr(closed)
    if all(isinstance(e, compat.QdEffect) for e in jaxpr.effects):
        return closed
    eqns: Sequence[JaxprEqn] = jaxpr.eqns
    outside = {v for v in jaxpr.constvars if is_ref(v)}
    if not outside and not any(is_ref(v) for eqn in eqns for v in eqn.outvars):
        return closed
    _check_places(eqns, outside)
    try:
        return compat.discharge_refs(closed)
    except NotImplementedError as error:
        raise UnsupportedError(
            f"references of jax.new_ref cannot become values: {str(error).splitlines()[0]}",
            help="carry the content as a value through this operation",
        ) from None


def is_ref(value: object) -> bool:
    """Returns whether a variable, a tracer or an argument is a reference."""
    return isinstance(getattr(value, "aval", None), compat.AbstractRef)


def refusal(loc: Loc | None) -> UnsupportedError:
    """Returns the error for a reference that is an argument of a function, or is used in it by another way."""
    return UnsupportedError(
        "a reference of jax.new_ref that was made outside of a function is used in it",
        loc=loc,
        help="pass its content, `ref[...]`, as an argument, return the new one and assign it: `ref[...] = f(ref[...])`",
    )


def _check_places(eqns: Sequence[JaxprEqn], outside: set[Var]) -> None:
    homes: dict[Atom, JaxprEqn | None] = {}
    bodies: list[JaxprEqn | None] = [None]
    for eqn in eqns:
        if eqn.primitive in markers.BEGINS:
            bodies.append(eqn)
        elif eqn.primitive in markers.ENDS:
            bodies.pop()
        used = [v for v in eqn.invars if is_ref(v)]
        if not outside.isdisjoint(used):
            raise refusal(eqn_loc(eqn))
        if eqn.primitive.name != "get" and any(homes[v] is not bodies[-1] for v in used):
            raise TraceValueError(
                "a reference of jax.new_ref changes in a loop or condition of this package, and was made outside of it",
                loc=eqn_loc(eqn),
                help="use a buffer (qd.empty), a qd.local, or lax.fori_loop in place of qd.range",
            )
        homes.update((v, bodies[-1]) for v in eqn.outvars if is_ref(v))
