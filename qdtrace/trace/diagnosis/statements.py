"""Statements whose value is dropped: `row.clip(0, 1)`, `jnp.sort(x)`, `out[i] == v`, `x[i] + 1`.

A function of JAX changes nothing, so a statement that only calls one does nothing. Equations tell: those that one
instruction of the user recorded, which is followed by the one that drops its value, none of which has an effect.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from qdtrace.errors import warn
from qdtrace.frozen import frozen
from qdtrace.trace import markers
from qdtrace.trace.compat import inner_jaxprs, open_jaxpr
from qdtrace.trace.diagnosis.places import place_of, read_place
from qdtrace.trace.inlined_rules import RULED
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.trace.compat import JaxprEqn, Var
    from qdtrace.trace.diagnosis.places import Place
    from qdtrace.trace.jaxprs import Atom

_MODULES = "jax", "jnp", "lax", "np", "qd"
"""Names that owners of a function have, in place of an array whose method it is."""


@frozen
class Inlined:
    """A call of a function that reads a buffer, and changes none; its equations stand in its place."""

    eqn: JaxprEqn
    results: tuple[Atom, ...]
    """Atoms that it gives."""


def reads_only(eqns: Sequence[JaxprEqn]) -> bool:
    """Returns whether equations have no effect."""
    return not any(_has_effect(e) for e in eqns)


def _has_effect(eqn: JaxprEqn) -> bool:
    if not eqn.effects or eqn.primitive in markers.READS:
        return False
    inner = [open_jaxpr(one).eqns for one in inner_jaxprs(eqn)]
    return not inner or not all(map(reads_only, inner))


def warn_of_statements(
    eqns: Sequence[JaxprEqn], unused: Sequence[JaxprEqn], calls: Sequence[Inlined], makers: Mapping[Var, JaxprEqn]
) -> None:
    """Warns of each statement whose value is dropped, at its line.

    `unused` are equations whose results no other one takes, and `makers` has the equation of each variable.
    """
    dropped: dict[Place, JaxprEqn] = {}
    pure = [e for e in unused if not (_has_effect(e) or e.primitive in markers.READS or e.primitive.name in RULED)]
    for eqn in (*pure, *(call.eqn for call in calls)):
        place = place_of(eqn)
        if place is not None and place.is_dropped("BINARY_OP", "COMPARE_OP", "UNARY_"):
            dropped.setdefault(place, eqn)
    doing = {place_of(e) for e in eqns if _has_effect(e)} if dropped else set()
    inlined = {id(call.eqn) for call in calls}
    for place, eqn in dropped.items():
        node = place.expression()
        if place in doing or not isinstance(node, ast.expr):
            continue
        fix = _fix(node, _is_memory(node, place, eqn, makers) or id(eqn) in inlined, _is_like(eqn))
        text = f"`{ast.unparse(node)}` gives a value and changes nothing, and this statement drops it"
        warn(f"{text}\nhelp: {fix}", eqn_loc(eqn))


def _fix(node: ast.expr, is_memory: bool, is_like: bool) -> str:
    """Returns the statement that keeps the value, where the one that was to change has a name or is an element.

    `is_memory`: that is a buffer or a cell; `is_like`: the value has its shape and dtype.
    """
    text = ast.unparse(node)
    match node:
        case ast.Compare(left, [ast.Eq()], [right]) if _is_element(left):
            return f"store it: `{ast.unparse(left)} = {ast.unparse(right)}`"
        case ast.BinOp(ast.Subscript() | ast.Attribute() as left, operator, right) if _is_element(left):
            return f"store it: `{ast.unparse(ast.AugAssign(left, operator, right))}`"
        case ast.Call(ast.Attribute(owner), arguments):
            of_module = isinstance(owner, ast.Name) and owner.id in _MODULES
            changed = next(iter(arguments), None) if of_module else owner
        case _:
            changed = None
    if is_like and isinstance(changed, ast.Name):
        return f"keep it: `{changed.id}{'[...]' * is_memory} = {text}`"
    if is_like and is_memory and changed is not None and _is_element(changed):
        return f"store it: `{ast.unparse(changed)} = {text}`"
    return f"keep it: `new = {text}`"


def _is_element(node: ast.expr) -> bool:
    return isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr == "value")


def _is_like(eqn: JaxprEqn) -> bool:
    (result, *others) = eqn.outvars
    return not others and bool(eqn.invars) and eqn.invars[0].aval == result.aval


def _is_memory(node: ast.expr, place: Place, eqn: JaxprEqn, makers: Mapping[Var, JaxprEqn]) -> bool:
    """Returns whether the expression itself reads a buffer or a cell, as `x.clip(0, 1)` and `x[i].clip(0, 1)` do."""
    source = read_place(eqn.invars[0], makers) if eqn.invars else None
    if source is None or source.code is not place.code:
        return False
    read = source.expression()
    inside = {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Subscript | ast.Attribute)}
    return source == place or (read is not None and ast.unparse(read) in inside)
