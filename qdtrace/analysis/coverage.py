"""Which references a task stores completely: every element, whatever the values are.

Looked at are stores that surely run (in the body of the task, or in a `for` with constant bounds there). An axis is
covered where its index counts through all of it, each axis with a variable of its own; what has constant indices is
covered when all of them are stored (the components of a row). A flat index split by quotient and remainder is put
together again.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.places import is_private_memory
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Literal, Var, ref_type
from qdtrace.ir.walk import walk_task

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.analysis.affine import AffineForms, Form
    from qdtrace.ir.program import Eqn, Task


def reads_of(task: Task) -> set[Var]:
    """References whose content the task looks at: what it loads, accumulates into or updates atomically."""
    looks = {Effect.READ, Effect.ACCUM}
    return {e.invars[0] for e in walk_task(task) if not looks.isdisjoint(e.primitive.effects)}  # type: ignore[misc]


def stored_completely(task: Task, forms: AffineForms) -> set[Var]:
    """References of which the task surely stores every element."""
    covered: set[Var] = set()
    rows: dict[tuple[Var, tuple[int, ...]], set[tuple[int, ...]]] = {}
    counted: set[Var] = set()
    if task.index is not None:
        if not _counts(task.index, forms):
            return covered
        counted.add(task.index)
    for eqn in _sure_stores(task.body.eqns, forms, counted):
        ref = eqn.invars[0]
        assert isinstance(ref, Var)
        kind = ref_type(ref)
        if ref in covered or is_private_memory(ref) or kind.size >= 1 << 31:
            continue
        flat = forms.address(kind, eqn.invars[2:])
        if kind.ndim > 1 and _runs_through(flat, kind.size, forms, counted) is not None:
            covered.add(ref)
            continue
        constants: list[int] = []
        axes: list[int] = []
        used: set[Var] = set()
        for axis, (index, size) in enumerate(zip(eqn.invars[2:], kind.shape, strict=True)):
            form = forms.of(index)
            if not form.terms:
                constants.append(form.constant % (1 << 32))
                axes.append(axis)
                continue
            var = _runs_through(form, size, forms, counted)
            if var is None or var in used:
                break
            used.add(var)
        else:
            found = rows.setdefault((ref, tuple(axes)), set())
            found.add(tuple(constants))
            if len(found) == prod(kind.shape[a] for a in axes):
                covered.add(ref)
    return covered


def _sure_stores(eqns: Iterable[Eqn], forms: AffineForms, counted: set[Var]) -> Iterable[Eqn]:
    for eqn in eqns:
        name = eqn.primitive.name
        if name == "store":
            yield eqn
        elif name == "for" and isinstance(eqn.invars[2], Literal) and abs(int(eqn.invars[2].value)) == 1:
            index = eqn.blocks[0].params[0]
            if _counts(index, forms):
                counted.add(index)
                yield from _sure_stores(eqn.blocks[0].eqns, forms, counted)


def _counts(index: Var, forms: AffineForms) -> bool:
    """The index runs over an interval that is known, and not empty."""
    return index in forms.intervals


def _runs_through(form: Form, size: int, forms: AffineForms, counted: set[Var]) -> Var | None:
    """The variable that makes the form take all values below `size`; None where there is none."""
    if len(form.terms) != 1:
        return None
    ((term, factor),) = form.terms.items()
    if not isinstance(term, Var) or term not in counted or abs(factor) != 1:
        return None
    bounds = forms.bounds(form)
    return term if bounds == (0, size - 1) else None

