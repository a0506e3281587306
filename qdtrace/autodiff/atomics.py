"""Atomics in derivatives: exchanges of adjoints, and atomics of the user, which no derivative runs again.

A store is *contested* if another iteration of its task may store to the same element. One of the values stays, so one
of the stores gets the adjoint of the element: the reverse of such a store exchanges the adjoint with 0, and the
iteration that comes first gets all of it. Where the values are equal, any store is the one that stays; where they are
not, which one stays is not determined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.memory import TaskMemory, is_comparable
from qdtrace.analysis.scattered import stores_are_apart
from qdtrace.errors import old_value_refused
from qdtrace.ir.custom import without_rules
from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import ATOMIC, STORE
from qdtrace.ir.program import is_global
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.dead_code import DeadCode

if TYPE_CHECKING:
    from collections.abc import Container

    from qdtrace.ir.program import Eqn, Program, Task, Var


def contested_stores(task: Task, active: Container[Var]) -> frozenset[Eqn]:
    """Returns the stores to active references of which nothing proves that iterations make them to different ones of
    the elements."""
    by_reference: dict[Var, list[Eqn]] = {}
    for eqn in walk_eqns(task.body) if task.index is not None else ():
        if eqn.primitive is STORE and is_global(eqn.invars[0]) and reference(eqn) in active:
            by_reference.setdefault(reference(eqn), []).append(eqn)
    memory = TaskMemory(task)
    return frozenset(e for ref, eqns in by_reference.items() if _may_meet(memory, ref, eqns) for e in eqns)


def _may_meet(memory: TaskMemory, ref: Var, eqns: list[Eqn]) -> bool:
    if not is_comparable(ref):
        return True
    return not memory.are_apart(eqns) and not stores_are_apart(memory.task, ref)


def check_atomics(program: Program, adjoints: Container[Var] = ()) -> None:
    """Raises GradientError if a derivative runs atomics again: threads would get other old values than the primal.

    References in `adjoints` are those of adjoints, which no primal has.
    """
    if all(reference(e) in adjoints for e in program.all_eqns if e.primitive is ATOMIC):
        return
    for task in DeadCode()(without_rules(program)).tasks:
        for eqn in task.all_eqns if task.index is not None else ():
            if eqn.primitive is ATOMIC and reference(eqn) not in adjoints:
                raise old_value_refused(eqn.params["op"], eqn.loc)
