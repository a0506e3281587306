"""Rows of parameters that iterations change for themselves become private memory.

Before:  for k in 0:i32 : 64:i32 : 1:i32       After:  c: cell[f32,64] = cell[...]
           a: f32 = load y_bar i k                       for k in 0:i32 : 64:i32 : 1:i32
           b: f32 = mul a s                                v: f32 = load y_bar i k
           store y_bar b i k                               store c v k
         ... loads of y_bar i k                          ... the same with `c k` in place of `y_bar i k`

XLA copies an argument whose memory a program writes, unless the caller gives it away. Reverse mode writes cotangents of
what loops change in place, which nobody reads behind the task. Applies where no other task uses the parameter and it is
no result; what iterations have for themselves is told as in `contract`, and their rows must surely be in the parameter.
Only on CPUs, where a copy takes as long as a light task: 0.6 of the time for the gradient of softmax as loops.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.trips import task_values
from qdtrace.analysis.machine import CPU
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference, written
from qdtrace.ir.program import Literal, Program, Task, Var, ref_type
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import Pass
from qdtrace.passes.contract import cells_for, with_cells

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom
    from qdtrace.passes.contract import Cell

MOST_BYTES = 1 << 13
"""Bytes of a row: with the rows of all lanes of a vector, as much as the second cache holds."""


@frozen
class OwnRows(Pass):
    """Copies rows of parameters into private memory where iterations would change them in place."""

    name: ClassVar[str] = "own_rows"
    machine: Machine = CPU

    def __call__(self, program: Program) -> Program:
        """Returns the program with private rows, or the same object if there are none."""
        if self.machine.platform != "cpu":
            return program
        free = set(program.params) - set(program.results)
        used = [ref for task in program.tasks for ref in set(task.refs)]
        free = {ref for ref in free if used.count(ref) == 1}
        return program.map_tasks(lambda task: _with_rows(task, free))


def _with_rows(task: Task, free: set[Var]) -> Task:
    changed = [ref for ref in dict.fromkeys(written(walk_eqns(task.body))) if ref in free and ref_type(ref).ndim]
    found = cells_for(task, changed, 1 << 62) if changed else {}
    starts = {ref: _start(task, ref, cell) for ref, cell in found.items() if ref_type(cell.var).nbytes <= MOST_BYTES}
    cells = {ref: found[ref] for ref, start in starts.items() if start is not None}
    first = {ref: _Row(ref, cell, start) for ref, cell in cells.items() if (start := starts[ref]) is not None}
    return with_cells(task, cells, first) if cells else task


def _start(task: Task, ref: Var, cell: Cell) -> dict[int, Atom] | None:
    """Returns the indices that all accesses of an iteration share, by axis, if they surely are in the parameter."""
    eqn = next(e for e in walk_eqns(task.body) if e.primitive.is_access and reference(e) is ref)
    shape, values = ref_type(ref).shape, task_values(task)
    found: dict[int, Atom] = {}
    for axis, index in enumerate(indices_of(eqn)):
        if axis in cell.kept:
            continue
        reach = values.interval if index is task.index and values is not None else None
        if isinstance(index, Literal):
            reach = (int(index.value), int(index.value))
        if reach is None or reach[0] < 0 or reach[1] >= shape[axis]:
            return None
        found[axis] = index
    return found


@frozen(eq=False)
class _Row:
    """The elements of a parameter that those of a cell begin with."""

    ref: Var
    cell: Cell
    start: dict[int, Atom]

    def __call__(self, builder: Builder, at: list[Atom]) -> Atom:
        """Emits the load of an element."""
        places = dict(zip(self.cell.kept, at, strict=True)) | self.start
        return builder.load(self.ref, *[places[axis] for axis in range(len(places))])
