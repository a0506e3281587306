"""Finds handles of memory that enter `lax` loops and branches, and those that come out of them unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jax.lax import cond_p, scan_p, while_p

from qdtrace.errors import TraceValueError
from qdtrace.trace import compat, markers
from qdtrace.trace.compat import JaxprEqn, Literal, Var

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import Jaxpr


def is_control(eqn: JaxprEqn) -> bool:
    """Returns whether an equation is control flow of JAX."""
    return eqn.primitive in (while_p, scan_p, cond_p)


def operand_maps(eqn: JaxprEqn) -> Iterator[tuple[Jaxpr, list[int]]]:
    """Yields each jaxpr that the equation runs, with the index of the operand behind each of its inputs."""
    primitive, params = eqn.primitive, eqn.params
    called = compat.called_jaxpr(eqn)
    if called is not None:
        jaxpr = compat.open_jaxpr(called)
        first = len(eqn.invars) - len(jaxpr.invars)
        yield jaxpr, list(range(first, len(eqn.invars)))
    elif primitive is while_p:
        c, b = params["cond_nconsts"], params["body_nconsts"]
        carry = list(range(c + b, len(eqn.invars)))
        yield compat.open_jaxpr(params["cond_jaxpr"]), [*range(c), *carry]
        yield compat.open_jaxpr(params["body_jaxpr"]), [*range(c, c + b), *carry]
    elif primitive is scan_p:
        yield compat.open_jaxpr(params["jaxpr"]), list(range(len(eqn.invars)))
    elif primitive is cond_p:
        for branch in params["branches"]:
            yield compat.open_jaxpr(branch), list(range(1, len(eqn.invars)))


def handle_inputs(jaxpr: Jaxpr) -> set[int]:
    """Returns positions of inputs that markers, also those of inner jaxprs, use as memory."""
    places = {var: k for k, var in enumerate(jaxpr.invars)}
    found: set[int] = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive in markers.ACCESSES:
            operands = [eqn.invars[0]]
        else:
            operands = [
                eqn.invars[operands_of[k]]
                for inner, operands_of in operand_maps(eqn)
                if compat.has_markers(inner.effects)
                for k in handle_inputs(inner)
            ]
        found.update(places[v] for v in operands if not isinstance(v, Literal) and v in places)
    return found


def forwarded_handles(eqn: JaxprEqn, handles: set[Var], loc: Loc | None) -> dict[int, Var]:
    """Returns result position -> handle operand, of control flow that passes handles through unchanged."""
    held = {k for k, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a in handles}
    is_loop, bodies = eqn.primitive is not cond_p, [*operand_maps(eqn)]
    what, first, carries = "the branches of lax.cond give different buffers", 0, 0
    if is_loop:
        first, carries = constant_count(eqn), _carry_count(eqn)
        bodies = bodies[-1:]  # without the condition of a `while`
        what = f"the carry of `{eqn.primitive.name}` holds a buffer that the body exchanges for another one"
        if any(k >= first + carries for k in held):
            raise _changed("a buffer cannot be scanned over", loc)
    sources = [_sources(jaxpr, held, places) for jaxpr, places in bodies]
    forwarded: dict[int, Var] = {}
    for k in range(len(eqn.outvars)):
        origins = {s.get(k) for s in sources}
        if is_loop:  # also where no iteration runs
            origins.add(first + k if k < carries and first + k in held else None)
        (origin, *others) = origins
        if others:
            raise _changed(what, loc)
        if origin is not None:
            forwarded[k] = eqn.invars[origin]  # type: ignore[assignment]
    return forwarded


def origin_of(result: object, eqn: JaxprEqn, handles: set[Var]) -> Var | None:
    """Returns the handle operand that a result of control flow or of a call is; None for any other result."""
    place = next((k for k, v in enumerate(eqn.outvars) if v is result), None)
    if place is None or not (is_control(eqn) or compat.called_jaxpr(eqn) is not None):
        return None
    if is_control(eqn):
        try:
            return forwarded_handles(eqn, handles, None).get(place)
        except TraceValueError:  # refused where regions are made, which know the line
            return None
    held = {k for k, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a in handles}
    ((body, places),) = operand_maps(eqn)
    found = _sources(body, held, places).get(place)
    return None if found is None else eqn.invars[found]  # type: ignore[return-value]


def constant_count(eqn: JaxprEqn) -> int:
    """Returns the number of operands of a loop that all iterations share; those that it carries follow."""
    if eqn.primitive is scan_p:
        return compat.scan_counts(eqn.params)[0]
    return eqn.params["cond_nconsts"] + eqn.params["body_nconsts"]


def _carry_count(eqn: JaxprEqn) -> int:
    return compat.scan_counts(eqn.params)[1] if eqn.primitive is scan_p else len(eqn.outvars)


def _sources(jaxpr: Jaxpr, held: set[int], places: list[int]) -> dict[int, int]:
    """Returns output position -> operand position, for outputs that are a handle input."""
    origin: dict[Var, int] = {v: places[k] for k, v in enumerate(jaxpr.invars) if places[k] in held}
    for eqn in jaxpr.eqns:
        called = compat.called_jaxpr(eqn)
        places_of = {k: origin[a] for k, a in enumerate(eqn.invars) if not isinstance(a, Literal) and a in origin}
        inner = set(places_of)
        if not inner:
            continue
        if called is not None:
            ((body, inner_places),) = operand_maps(eqn)
            passed = _sources(body, inner, inner_places)
        elif is_control(eqn):
            operands = {a for k, a in enumerate(eqn.invars) if k in inner and isinstance(a, Var)}
            back = {v: k for k, v in enumerate(eqn.invars) if k in inner}
            passed = {k: back[v] for k, v in forwarded_handles(eqn, operands, None).items()}
        else:
            continue
        for k, operand in passed.items():
            origin[eqn.outvars[k]] = places_of[operand]
    return {k: origin[v] for k, v in enumerate(jaxpr.outvars) if not isinstance(v, Literal) and v in origin}


def _changed(rule: str, loc: Loc | None) -> TraceValueError:
    return TraceValueError(
        rule,
        loc=loc,
        help="give the function of JAX the content, `x[...]`; or pass each buffer through unchanged and copy values "
        "between them",
        wants="array",
    )
