"""Value numbering of the heads of tasks: equal values of different tasks are one.

Two equations are equal if their expressions are; for loads also the version of the memory that is read, which every
task that writes it raises.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from qdtrace.analysis.expressions import Expressions
from qdtrace.ir.program import Atom, Eqn, Task, Var, is_global
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from collections.abc import Iterable


def _is_numbered(eqn: Eqn) -> bool:
    """Returns whether a result depends on operands and versions of memory alone; private memory has no versions."""
    is_known = not eqn.primitive.effects or (bool(eqn.invars) and is_global(eqn.invars[0]))
    return is_known and len(eqn.outvars) == 1 and not eqn.blocks


class ValueNumbering(Expressions):
    """Numbers of the head equations of a program's tasks, in order, that give equal ones the same variables."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        super().__init__({v: eqn for task in tasks for eqn in task.head for v in eqn.outvars})
        self._first: dict[int, Eqn] = {}
        self._versions = count()

    def shared(self, task: Task) -> tuple[tuple[Eqn, ...], dict[Var, Atom]]:
        """Returns the head with the first of equal equations, and the replacements of the task's own variables."""
        rebuilder = Rebuilder()
        out: dict[Eqn, None] = {}
        for eqn in task.head:
            first = rebuilder.rebuild_eqn(eqn)
            if not _is_numbered(eqn):
                self.written(eqn.outvars)
            elif (first := self._first.setdefault(self.number(eqn.outvar), first)).outvar is not eqn.outvar:
                rebuilder.env[eqn.outvar] = first.outvar
            out[first] = None
        return tuple(out), rebuilder.env

    def written(self, changed: Iterable[Var]) -> None:
        """Gives references that a task changed, or values that are like no other, a new number."""
        for var in changed:
            self.call(var, f"version {next(self._versions)}")
