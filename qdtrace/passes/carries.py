"""Structured equations: carries that never change, branches that choose between values. All rules are exact."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.slopes import has_finite_slopes
from qdtrace.ir.carries import Carry, carries_of, with_carries
from qdtrace.rules.match import same
from qdtrace.rules.table import RuleTable

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom, Eqn
    from qdtrace.passes.rewrite import Rewriter

TABLE = RuleTable()
SPECULATED = 6
"""Cheap equations that both branches of an `if` may hold together to be computed always."""


@TABLE.rule("for while", stage="before")
def carry_unchanged(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """A carry that the body yields as it came, or as it began, is its initial value"""
    keep = carries_of(eqn)
    found = True
    while found:  # one carry that goes may show that another one never changes
        found = False
        for carry in keep.copy():
            (result,), initial = carry.results, carry.initial
            assert initial is not None
            if result is carry.params[-1] or same(w.atom(result), initial):
                for var in (*carry.params, carry.outvar):
                    w.env[var] = initial
                keep.remove(carry)
                found = True
    return None if len(keep) == len(eqn.outvars) else with_carries(eqn, keep)


@TABLE.rule("if", stage="before")
def if_not(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """`if not c` -> `if c` with the branches swapped"""
    inner = w.defined_by(eqn.invars[0], "not")
    return None if inner is None else replace(eqn, invars=inner, blocks=eqn.blocks[::-1])


@TABLE.rule("if", stage="after")
def if_same_result(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """A result that both branches yield alike is that value"""
    keep: list[Carry] = []
    for carry in carries_of(eqn):
        if same(*carry.results):
            w.env[carry.outvar] = carry.results[0]
        else:
            keep.append(carry)
    return None if len(keep) == len(eqn.outvars) else with_carries(eqn, keep)


@TABLE.rule("if", stage="after")
def if_to_select(w: Rewriter, eqn: Eqn) -> tuple[Atom, ...] | None:
    """An `if` whose branches only compute a few cheap values is those values and a `select` for each result (in a
    program to be differentiated only those whose slopes are finite: `analysis/slopes`)"""
    then, other = eqn.blocks
    eqns = (*then.eqns, *other.eqns)
    if len(eqns) > SPECULATED or not eqn.outvars:
        return None
    if any(e.blocks or e.primitive.effects or not e.primitive.cheap for e in eqns):
        return None
    if w.options.differentiable and not all(map(has_finite_slopes, eqns)):
        return None
    for each in eqns:
        w.append(each)
    return tuple([w.op("select", eqn.invars[0], *carry.results) for carry in carries_of(eqn)])
