"""Rows: a task over a product of ranges decodes its flat index by `f // m` and `f % m`.

If the steps of the task keep to rows of m iterations, the quotient is uniform and the remainder grows by one from lane
to lane. So `x[f // m + 1, f % m - 1]` is contiguous whatever the length of a row of `x` is, and no lane divides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.simd.descriptions import Row
from qdtrace.analysis.index.affine import Quotient
from qdtrace.ir.primitives import DIV, REM
from qdtrace.ir.program import Literal, Var, ref_type
from qdtrace.ir.types import RefType, Space
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from lowering.llvm.facts import TaskFacts
    from qdtrace.analysis.index.affine import Form
    from qdtrace.ir.program import Eqn


def find_row(facts: TaskFacts) -> Row | None:
    """Returns the rows of a quotient of the task's index that the body uses outside of addresses, or None."""
    task, forms = facts.task, facts.forms
    if task.index is None or not isinstance(task.start, Literal):
        return None
    for quotient in sorted(_quotients(facts), key=lambda q: q.divisor):
        numerator = quotient.dividend
        offset = numerator.constant
        # In a narrower dtype the dividend may have wrapped.
        plain = numerator.terms == {task.index: 1} and quotient.dtype.bits >= task.index.dtype.bits
        if plain and int(task.start.value) + offset >= 0 and _matters(facts, quotient):
            row = Row(quotient.divisor, offset, quotient, frozenset())
            same = frozenset(v for v, form in forms.forms.items() if row.keeps(_only(form)))
            return replace(row, uniform=same - _of_vectors(facts, same))
    return None


def _of_vectors(facts: TaskFacts, same: frozenset[Var]) -> set[Var]:
    """Returns the variables that are computed from a digit of one value (`f // 36` of 36 iterations), or from others of
    them: lanes hold such a digit as a vector, though its form is a constant."""
    found: set[Var] = set()
    for eqn in walk_eqns(facts.task.body):
        if len(eqn.outvars) == 1 and eqn.outvars[0] in same:
            operands = [a for a in eqn.invars if isinstance(a, Var)]
            if any(a in found or (a in facts.forms.forms and not facts.forms.of(a).terms) for a in operands):
                found.add(eqn.outvars[0])
    return found


def _only(form: Form) -> object:
    """Returns the only term of a form plus a constant, or None."""
    return next(iter(form.terms)) if [*form.terms.values()] == [1] else None


def _quotients(facts: TaskFacts) -> list[Quotient]:
    found: dict[Quotient, None] = {}
    for eqn in walk_eqns(facts.task.body):
        if eqn.primitive in (DIV, REM):
            for term in facts.forms.of(eqn.outvars[0]).terms:
                if isinstance(term, Quotient):
                    found[term] = None
    return list(found)


def _matters(facts: TaskFacts, quotient: Quotient) -> bool:
    """Returns whether the quotient is used by anything but an address in which it cancels."""
    return any(_depends(facts, eqn, quotient) for eqn in walk_eqns(facts.task.body))


def _depends(facts: TaskFacts, eqn: Eqn, quotient: Quotient) -> bool:
    forms, prim = facts.forms, eqn.primitive
    if len(eqn.outvars) == 1 and eqn.outvars[0] in forms.forms:
        return False
    atoms = list(eqn.invars)
    if prim.is_access:
        ref = ref_type(eqn.invars[0])
        if ref.space is Space.GLOBAL:
            first = len(atoms) - ref.ndim
            if quotient in forms.address(ref, atoms[first:]).terms:
                return True
            atoms = atoms[:first]
    results = [r for block in eqn.blocks for r in block.results]
    return any(
        isinstance(a, Var) and not isinstance(a.type, RefType) and quotient in forms.of(a).terms
        for a in (*atoms, *results)
    )
