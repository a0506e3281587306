"""Rows of three floats that many iterations add to get a fourth, so that a device adds a whole row at once.

Before:  buffer f: ref[f32,nx3] = 0.0:f32        After:  buffer f: ref[f32,nx4] = 0.0:f32
           accum[op=add] f a i 0:i32                       accum[op=add] f a i 0:i32
           accum[op=add] f b i 1:i32                       accum[op=add] f b i 1:i32
           accum[op=add] f c i 2:i32                       accum[op=add] f c i 2:i32
                                                           accum[op=add] f 0.0:f32 i 3:i32

Only buffers of the program itself, none of whose elements is asked for as a result: nobody else knows their shape.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from math import prod
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.plan.sums import find_sums
from lowering.plan.update_groups import group_updates
from qdtrace.analysis.cost import executed
from qdtrace.analysis.index.trips import task_values
from qdtrace.ir.builder import ref_var
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.walk import blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qdtrace.analysis.machine import AccumulationLimits
    from qdtrace.ir.program import Eqn, Program, Task, Var

COLUMNS = 3
LEAST_UPDATES = 2
"""Additions to each row, on average, from which on they cost more than a third more bytes to clear and to read."""
MANY = 1 << 30
"""Iterations of a task whose bounds are not known."""


def padded(program: Program, limits: AccumulationLimits) -> Program:
    """Returns a program whose rows of three floats have a fourth where whole rows are added to often enough."""
    own = [v for v in program.initial if v not in program.results and v not in program.donated_from]
    shapes = {v: ref_type(v).shape for v in own if v.dtype is DType.f32}
    rows = {v: prod(shape[:-1]) for v, shape in shapes.items() if shape[-1:] == (COLUMNS,)}
    if not rows:
        return program
    updates: Counter[Var] = Counter()
    ends: set[Eqn] = set()
    for task in program.tasks:
        found = [*_last_of_rows(task, limits, rows)]
        ends.update(found)
        values = task_values(task)
        for ref in dict.fromkeys(map(reference, found)):
            mine = {e for e in found if reference(e) is ref}
            times = executed(task.body, mine.__contains__)
            updates[ref] += times * (MANY if values is None else values.count)
    wide = {
        v: ref_var(v.dtype, (*ref_type(v).shape[:-1], COLUMNS + 1), v.hint)
        for v, n in rows.items()
        if n > 1 and updates[v] >= LEAST_UPDATES * n
    }
    if not wide:
        return program
    tasks = tuple(_Padding(wide, ends).rebuild_task(task) for task in program.tasks)
    initial = {wide.get(v, v): value for v, value in program.initial.items()}
    return replace(program, tasks=tasks, buffers=tuple(wide.get(v, v) for v in program.buffers), initial=initial)


def _last_of_rows(task: Task, limits: AccumulationLimits, rows: Mapping[Var, int]) -> Iterator[Eqn]:
    """Yields the last of each three additions, one after another, to the components of a row that threads share."""
    if not any(e.primitive is ACCUM and reference(e) in rows for e in task.all_eqns):
        return
    sums = find_sums(TaskFacts(task), limits)
    stack = [*blocks_of(task)]
    while stack:
        eqns = stack.pop().eqns
        for group in chain.from_iterable(group_updates(sums, eqns)):
            if group.ref in rows and group.op == "add" and len(group.values) == COLUMNS:
                yield group.last
        stack += (block for e in eqns for block in e.blocks)


class _Padding(Rebuilder):
    """Rebuilds tasks with wider buffers, and adds nothing to the fourth component behind each row."""

    def __init__(self, wide: Mapping[Var, Var], ends: set[Eqn]) -> None:
        super().__init__({**wide})
        self.ends = ends

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, and an addition to the fourth component where it ends a row."""
        super().visit(eqn)
        if eqn in self.ends and (ref := self.atom(reference(eqn))) is not reference(eqn):
            self.loc = eqn.loc
            *row, last = self.atoms(indices_of(eqn))
            self.emit("accum", ref, literal(0.0, DType.f32), *row, literal(COLUMNS, last.dtype), op="add")
