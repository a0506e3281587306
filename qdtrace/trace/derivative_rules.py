"""Finds functions in traced items whose derivative need not be that of what they compute.

These are `lax.stop_gradient` and functions of users with rules of their own. A transpose is made of derivatives, so it
is the transpose of the function itself only where none of them is on the way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.trace import compat
from qdtrace.trace.inlined_rules import RULED
from qdtrace.trace.markers import REGIONS
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.tangents import reached
from qdtrace.trace.tree import equations_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from qdtrace.errors import Loc
    from qdtrace.trace.compat import JaxprEqn, Var

    Found = tuple[str, Loc | None]


def rule_on_the_way(items: Sequence[JaxprEqn], moved: Iterable[Var], memory: Iterable[Var]) -> Found | None:
    """Returns name and line of the first such function whose operands depend on the variables `moved`, or None.

    `memory` are the buffers from outside.
    """
    found = reached(list(items), {*moved}, dict.fromkeys(memory))
    return next(_rules(equations_in(items), found), None)


def _rules(eqns: Iterable[JaxprEqn], found: set[Var | int]) -> Iterator[Found]:
    for eqn in eqns:
        given = [not isinstance(v, compat.Literal) and v in found for v in eqn.invars]
        if not any(given) or eqn.primitive in REGIONS:
            continue
        if (name := _name_of_rule(eqn)) is not None:
            yield name, eqn_loc(eqn)
        opened = list(map(compat.open_jaxpr, compat.inner_jaxprs(eqn)))
        for inner in opened:
            # operands of control flow have other places inside
            same = len(opened) == 1 and len(inner.invars) == len(given)
            given_here = given if same else [True] * len(inner.invars)
            moved: set[Var | int] = {v for v, g in zip(inner.invars, given_here, strict=True) if g}
            yield from _rules(inner.eqns, reached(list(inner.eqns), moved, {}))


def _name_of_rule(eqn: JaxprEqn) -> str | None:
    if eqn.primitive is compat.stop_gradient_p:
        return "lax.stop_gradient"
    if eqn.primitive.name not in RULED:
        return None
    name, is_own = compat.described(eqn.params["call_jaxpr"])
    return None if is_own else name
