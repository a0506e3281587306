"""Value numbering of the heads of tasks: equal values of different tasks are one.

Two equations are equal if their primitives, parameters and operands are; for loads also the version of the memory that
is read, which every task that writes it raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from qdtrace.ir.program import Atom, Eqn, Literal, Task, Var, is_global
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def _is_numbered(eqn: Eqn) -> bool:
    """Returns whether a result depends on operands and versions of memory alone; private memory has no versions."""
    return not eqn.blocks and (not eqn.primitive.effects or (bool(eqn.invars) and is_global(eqn.invars[0])))


@dataclass(slots=True)
class ValueNumbering:
    """Table of the head equations of a program's tasks, in order, that gives equal ones the same variables."""

    _known: dict[tuple[object, ...], Eqn] = field(default_factory=dict[tuple[object, ...], Eqn])
    _versions: dict[Var, int] = field(default_factory=dict[Var, int])
    _counter: Iterator[int] = field(default_factory=count)

    def shared(self, task: Task) -> tuple[tuple[Eqn, ...], dict[Var, Atom]]:
        """Returns the head with the first of equal equations, and the replacements of the task's own variables."""
        rebuilder = Rebuilder()
        out: dict[Eqn, None] = {}
        for eqn in task.head:
            renamed = rebuilder.rebuild_eqn(eqn)
            if len(eqn.outvars) == 1 and _is_numbered(eqn):
                known = self._known.setdefault(self._key(renamed), renamed)
                if known.outvars[0] is not eqn.outvars[0]:
                    rebuilder.env[eqn.outvars[0]] = known.outvars[0]
                renamed = known
            out[renamed] = None
        return tuple(out), rebuilder.env

    def written(self, refs: Iterable[Var]) -> None:
        """Gives references that a task changed a new version."""
        for ref in refs:
            self._versions[ref] = next(self._counter) + 1

    def _key(self, eqn: Eqn) -> tuple[object, ...]:
        operands = [a.key if isinstance(a, Literal) else a for a in eqn.invars]
        version = None
        if eqn.primitive.effects and isinstance(eqn.invars[0], Var):
            version = self._versions.get(eqn.invars[0], 0)
        return (eqn.primitive.name, eqn.params_key, version, *operands)
