"""Renewed references: large ones that a task overwrites whole, and never reads back.

Such a task needs the old content only where it loads it, and the new content needs memory of no certain content. So the
task takes two pointers of a renewed reference: one that its loads read, one that its stores write. If the caller of the
program still needs an argument, its old content stays where it is and XLA copies nothing; if nobody does, both pointers
are equal and the array changes in place. The code is the same.

    x[i] = 2 * x[i]            renewed
    x[i] = x[i] + x[i - 1]     not renewed: an iteration may read what another one has stored
    if c[i]: x[i] = 0          not renewed: elements stay
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.memory import is_large, loaded, written
from qdtrace.ir.program import Var, is_global

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.ir.program import Program, Task


def large(refs: Iterable[Var]) -> list[Var]:
    """Returns those of some references that are worth a pointer more, in order."""
    return [v for v in refs if is_global(v) and is_large(v)]


def renewed_by(task: Task, refs: Iterable[Var]) -> tuple[Var, ...]:
    """Returns those of some `large` references that a task renews, in order."""
    changed = set(written(task.all_eqns))
    found = [v for v in refs if v in changed]
    if not found:
        return ()
    # only here: they load what a process with a warm cache does without
    from qdtrace.analysis.in_place import reads_come_first
    from qdtrace.analysis.index.definite_stores import filled_by

    whole = filled_by(task)
    return tuple([v for v in found if v in whole and reads_come_first(task, v, v)])


def sources_of(task: Task, refs: Iterable[Var]) -> tuple[Var, ...]:
    """Returns those of some `large` references that a task loads and renews, in order: they have two pointers."""
    read = set(loaded(task.all_eqns))
    return renewed_by(task, [v for v in refs if v in read])


def renewals(program: Program) -> dict[Var, int]:
    """Returns the parameters that the first task that writes them renews, with its number."""
    found: dict[Var, int] = {}
    waiting = large(program.params)
    for k, task in enumerate(program.tasks):
        if not waiting:
            break
        changed = set(written(task.all_eqns)).intersection(waiting)
        if changed:
            found |= dict.fromkeys(renewed_by(task, changed), k)
            waiting = [v for v in waiting if v not in changed]
    return found
