"""Splits tasks between loops that change the same memory, where a derivative would need a long tape of it.

    for i in 0 : rows                              for i in 0 : rows
      a: i32 = load start i                          a: i32 = load start i
      ...                                            ...
      for j in a : b                                 for j in a : b
        ... load x j-1 ... store x j                   ... load x j-1 ... store x j
      for j in b-1 : a-1 : -1        becomes       for i in 0 : rows
        ... load x j+1 ... store x j                 a: i32 = load start i
                                                     ...
                                                     for j in b-1 : a-1 : -1
                                                       ... load x j+1 ... store x j

Each part changes an element once, so its loads find what memory holds before or behind it (`write_once`); what it holds
between the parts is kept as between any two tasks. Iterations run in no order and do not meet, so all of them may run
the first part before one runs the second. Numbers that cross a cut are computed again in each part: from the index, and
from memory that the task does not write.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.autodiff.activity import active_variables
from qdtrace.autodiff.rows import with_rows
from qdtrace.autodiff.tape import long_tapes
from qdtrace.autodiff.write_once import settled
from qdtrace.autodiff.zeros import zeros_of
from qdtrace.ir.dataflow import reached
from qdtrace.ir.memory import loaded, written
from qdtrace.ir.primitives import ATOMIC, BOUND, LOAD
from qdtrace.ir.program import Block, Var
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.walk import used_vars, walk_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qdtrace.ir.program import Eqn, Program, Task


def with_split_tasks(program: Program, linear: Sequence[Var]) -> Program:
    """Returns the program with tasks split whose transpose in the `linear` parameters would need long tapes."""
    if not any(map(_may_split, program.tasks)):
        return program
    zero = zeros_of(program, linear, active_variables(program, linear, program.results))
    tasks = [part for task in program.tasks for part in (_parts(task, zero) if _may_split(task) else [task])]
    return program if len(tasks) == len(program.tasks) else replace(program, tasks=tuple(tasks))


def _may_split(task: Task) -> bool:
    """Returns whether two equations of a task's body write the same memory, one of them a loop."""
    writing = [(e, set(written(walk_all([e])))) for e in task.body.eqns]
    loops = [refs for e, refs in writing if e.primitive.loops and refs]
    return bool(loops) and any(
        not refs.isdisjoint(others) for refs in loops for _, others in writing if others is not refs
    )


def _parts(task: Task, zero: frozenset[Var]) -> list[Task]:
    """Returns the fewest parts of a task that need no long tapes, or the task alone if there are none such."""
    if not _needs_tape(task, zero) or any(e.primitive is ATOMIC for e in task.all_eqns):
        return [task]
    parts: list[list[Eqn]] = [[]]
    for piece in _pieces(task):
        longer = [*parts[-1], *piece]
        if parts[-1] and _needs_tape(_part(task, longer), zero):
            parts.append(piece)
        else:
            parts[-1] = longer
    made = [replace(_part(task, eqns), name=f"{task.name}_part_{k}") for k, eqns in enumerate(parts, 1)]
    return [task] if any(_needs_tape(part, zero) for part in made) else made


def _needs_tape(task: Task, zero: frozenset[Var]) -> bool:
    task = with_rows(task)
    found = settled(task, zero)
    return bool(long_tapes(task, found.taped, MostTrips(task)))


def _pieces(task: Task) -> Iterator[list[Eqn]]:
    """Yields the equations of a task's body in pieces, between which it may be cut."""
    changed = set(written(task.all_eqns))
    eqns, again = task.body.eqns, {v: e for e in task.body.eqns if _runs_again(e, changed) for v in e.outvars}
    once = {v for e in eqns for v in e.outvars if v not in again}
    for e in again.values():  # in order, so that operands come first
        if not once.isdisjoint(used_vars(e)):
            once.update(e.outvars)
    if not changed.isdisjoint(loaded(task.head)):
        yield [*eqns]
        return
    last = {v: k for k, e in enumerate(eqns) for v in used_vars(e) if v in once}
    piece: list[Eqn] = []
    until = -1
    for k, e in enumerate(eqns):
        piece.append(e)
        until = max(until, *(last.get(v, k) for v in e.outvars), k)
        if until == k:
            yield piece
            piece = []
    if piece:
        yield piece


def _runs_again(eqn: Eqn, changed: set[Var]) -> bool:
    """Returns whether an equation gives the same in each part of a task that writes the memory in `changed`."""
    if eqn.blocks:
        return False
    return (
        not eqn.primitive.effects or eqn.primitive is BOUND or (eqn.primitive is LOAD and eqn.invars[0] not in changed)
    )


def _part(task: Task, eqns: Sequence[Eqn]) -> Task:
    """Returns the task with some of its equations, and those of which they need results, with fresh variables."""
    makers = {v: e for e in task.body.eqns for v in e.outvars}
    needed = reached([v for e in eqns for v in used_vars(e)], lambda v: used_vars(makers[v]) if v in makers else ())
    own = {id(e) for e in eqns}
    kept = [e for e in task.body.eqns if id(e) in own or not needed.isdisjoint(e.outvars)]
    return Copier().rebuild_task(replace(task, body=Block((), tuple(kept))))
