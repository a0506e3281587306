"""Residuals: contents of memory that the primal saves, so that its derivatives need not run its tasks again.

A derivative of a task needs the memory as the task found it. Contents that an earlier task made are *moments* of the
program: the content of a reference after that task. A derivative that is given them does not need that task's results;
the rest of the task, checks included, is then left out, as the primal has run it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.versions import Versions, written_by
from qdtrace.autodiff.volatile import accesses
from qdtrace.autodiff.write_once import found_behind, settled
from qdtrace.ir.primitives import BOUND, CHECK, LOAD
from qdtrace.ir.program import Program, Var
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from qdtrace.ir.program import Eqn, Task

Moment = tuple[int, int]
"""A number of tasks and the number of a reference among parameters and buffers: its content after these tasks."""


def references(program: Program) -> tuple[Var, ...]:
    """Returns the references in the order in which moments number them: parameters, then buffers."""
    return (*program.params, *program.buffers)


class Given:
    """The contents of memory that a derivative of a program takes as parameters."""

    def __init__(self, program: Program, moments: Iterable[Moment]) -> None:
        refs = references(program)
        self.params = {(k, r): Var(refs[r].type, refs[r].hint) for k, r in moments}
        """The parameter of each moment."""
        self._number = {v: r for r, v in enumerate(refs)}
        self._last: list[dict[Var, int]] = [{}]
        for k, task in enumerate(program.tasks):
            self._last.append(self._last[-1] | dict.fromkeys(written_by(task), k + 1))

    def moment(self, k: int, ref: Var) -> Moment | None:
        """Returns the moment that task `k` finds in a reference; None if no earlier task writes it."""
        last = self._last[k].get(ref)
        return None if last is None else (last, self._number[ref])

    def content(self, k: int, ref: Var) -> Var | None:
        """Returns the parameter with the content that task `k` finds in a reference; None if it is not given."""
        moment = self.moment(k, ref)
        return None if moment is None else self.params.get(moment)


def moments_found(program: Program, active: Iterable[Var]) -> list[Moment]:
    """Returns the moments that tasks with active memory find."""
    refs, found = set(active), Given(program, ())
    moments: dict[Moment, None] = {}
    for k, task in enumerate(program.tasks):
        used = task.refs
        if not refs.isdisjoint(used):
            moments.update(dict.fromkeys(m for ref in used if (m := found.moment(k, ref)) is not None))
            behind = (found.moment(k + 1, ref) for ref in found_behind(settled(task)))
            moments.update(dict.fromkeys(m for m in behind if m is not None))
    return list(moments)


def keeping(program: Program, moments: Sequence[Moment]) -> Program:
    """Returns the program with the contents at moments as additional results. Its parameters are not written."""
    refs = references(program)
    versions = Versions(program, [(k, refs[r]) for k, r in moments])
    end = len(program.tasks)
    results = [versions.before[end, v] for v in program.results] + [versions.before[k, refs[r]] for k, r in moments]
    return replace(
        program,
        buffers=tuple(versions.buffers),
        tasks=tuple(versions.tasks),
        results=tuple(results),
        initial=versions.initial,
        donated_from={},
    )


class Unchecked(Rebuilder):
    """Removes checks from code that runs again, as its first run has passed them."""

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation unless it is a check; a `bound` becomes its operand."""
        if eqn.primitive is BOUND:
            self.env[eqn.outvar] = self.atom(eqn.invars[0])
        elif eqn.primitive is not CHECK:
            super().visit(eqn)


class LoadsFrom(Rebuilder):
    """Redirects loads of some references to other memory."""

    def __init__(self, memory: Mapping[Var, Var]) -> None:
        super().__init__()
        self._memory = memory

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, with another reference if it is a load of one in `memory`."""
        if eqn.primitive is LOAD and (found := self._memory.get(eqn.invars[0])) is not None:  # type: ignore[arg-type]
            eqn = replace(eqn, invars=(found, *eqn.invars[1:]))
        super().visit(eqn)


def loading_given(program: Program, forward: Program, given: Given, active: Iterable[Var]) -> Program:
    """Returns the forward mode of a program that loads the given contents from parameters after the program's own.

    Tasks without active memory run only for the values that others need, so they have no checks.
    """
    made: list[Task] = []
    refs = set(active)
    for k, (task, with_tangents) in enumerate(zip(program.tasks, forward.tasks, strict=True)):
        used = task.refs
        if refs.isdisjoint(used):
            made.append(Unchecked().rebuild_task(with_tangents))
            continue
        changing = accesses(task).volatile
        memory = {r: v for r in used if r not in changing and (v := given.content(k, r)) is not None}
        made.append(LoadsFrom(memory).rebuild_task(with_tangents))
    own = len(program.params)
    params = (*forward.params[:own], *given.params.values(), *forward.params[own:])
    return replace(forward, tasks=tuple(made), params=params)
