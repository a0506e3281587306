"""Structured equations: carries that never change, branches that choose between values. All rules are exact."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import FUNCTIONS
from qdtrace.ir.program import Block, Eqn
from qdtrace.passes.rule_table import RuleTable
from qdtrace.passes.rules.match import same

if TYPE_CHECKING:
    from qdtrace.ir.program import Atom
    from qdtrace.passes.rewrite import Rewriter

TABLE = RuleTable()
SPECULATED = 6
"""Cheap equations that both branches of an `if` may hold together to be computed always."""
_COSTLY = FUNCTIONS | {"div", "rem", "sqrt", "integer_pow", "fma", "quotient"}


@TABLE.rule("for while", stage="before")
def carry_unchanged(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """A carry that the body yields as it came, or as it began, is its initial value"""
    first = 3 if eqn.primitive.name == "for" else 0
    body = eqn.blocks[-1]
    carries = body.params[len(body.params) - len(body.results) :]
    keep = list(range(len(carries)))
    found = True
    while found:  # one carry that goes may show that another one never changes
        found = False
        for k in keep.copy():
            result, init = body.results[k], eqn.invars[first + k]
            if result is carries[k] or same(w.value_of(result), init):
                for block in eqn.blocks:
                    w.replace_var(block.params[len(block.params) - len(carries) + k], init)
                w.replace_var(eqn.outvars[k], init)
                keep.remove(k)
                found = True
    if len(keep) == len(carries):
        return None
    blocks: list[Block] = []
    for block in eqn.blocks:
        own = len(block.params) - len(carries)
        params = (*block.params[:own], *[block.params[own + k] for k in keep])
        results = tuple([block.results[k] for k in keep]) if block is body else block.results
        blocks.append(Block(params, block.eqns, results))
    invars = (*eqn.invars[:first], *[eqn.invars[first + k] for k in keep])
    outvars = tuple([eqn.outvars[k] for k in keep])
    return replace(eqn, invars=invars, outvars=outvars, blocks=tuple(blocks))


@TABLE.rule("if", stage="before")
def if_not(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """`if not c` -> `if c` with the branches swapped"""
    inner = w.defined_by(eqn.invars[0], "not")
    return None if inner is None else replace(eqn, invars=inner, blocks=eqn.blocks[::-1])


@TABLE.rule("if", stage="after")
def if_same_result(w: Rewriter, eqn: Eqn) -> Eqn | None:
    """A result that both branches yield alike is that value"""
    then, other = eqn.blocks
    keep: list[int] = []
    for k, (a, b) in enumerate(zip(then.results, other.results, strict=True)):
        if same(a, b):
            w.replace_var(eqn.outvars[k], a)
        else:
            keep.append(k)
    if len(keep) == len(eqn.outvars):
        return None
    blocks = tuple([Block((), b.eqns, tuple([b.results[k] for k in keep])) for b in eqn.blocks])
    return replace(eqn, outvars=tuple([eqn.outvars[k] for k in keep]), blocks=blocks)


@TABLE.rule("if", stage="after")
def if_to_select(w: Rewriter, eqn: Eqn) -> tuple[Atom, ...] | None:
    """An `if` whose branches only compute a few cheap values is those values and a `select` for each result"""
    then, other = eqn.blocks
    eqns = (*then.eqns, *other.eqns)
    if len(eqns) > SPECULATED or not eqn.outvars:
        return None
    if any(e.blocks or e.primitive.effects or e.primitive.name in _COSTLY for e in eqns):
        return None
    w.splice(eqns)
    pairs = zip(then.results, other.results, strict=True)
    return tuple([w.emit("select", eqn.invars[0], a, b) for a, b in pairs])
