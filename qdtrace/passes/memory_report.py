"""The memory analysis as text: live references around each task, facts at the borders of regions, dead stores.

    memory of p, each task by itself
    task 0 `f.0`
      live in: x, y
      live out: b, y
      into for k: b[i] = v0
      after if p: b[i] = one of two
      dead: store b v0 i  # model.py:12
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.primitives import FOR, IF
from qdtrace.ir.printer import Printer, print_eqn
from qdtrace.passes.store_forwarding import forwarded

if TYPE_CHECKING:
    from qdtrace.analysis.memory import MemoryLocation
    from qdtrace.ir.program import Atom, Eqn, Program, Task
    from qdtrace.passes.dead_stores import Borders


class MemoryReport:
    """Collects the results of the two memory analyses of a program, with the names of the program before them."""

    def __init__(self, program: Program, *, per_task: bool) -> None:
        self.program = program
        self.printer = Printer()
        self.printer.program(program)
        how = "each task by itself" if per_task else "through all tasks"
        self.title = f"memory of {program.name}, {how}"
        self.facts: list[list[str]] = []
        self.around: list[list[str]] = []

    def forwarded(self) -> Program:
        """Returns the program with its loads forwarded."""
        return self.program.map_tasks(self._forwarded)

    def _forwarded(self, task: Task) -> Task:
        self.facts.append([])
        return forwarded(task, self._note)

    def _note(self, where: str, eqn: Eqn, known: list[tuple[MemoryLocation, Atom | None]]) -> None:
        atom = self.printer.atom
        facts = sorted(
            f"{atom(at.ref)}[{self.printer.atoms(at.indices)}] = {'one of two' if value is None else atom(value)}"
            for at, value in known
        )
        prim = eqn.primitive
        what = atom(eqn.index) if prim is FOR else atom(eqn.invars[0]) if prim is IF else ""
        self.facts[-1].append(f"{where} {what}".rstrip() + ": " + ("; ".join(facts) or "nothing known"))

    def borders(self, task: Task, found: Borders) -> None:
        """Records what `dead_stores` found for a task; called from the last task to the first."""
        order = (*self.program.params, *self.program.buffers)
        lines = [f"live in: {self.printer.atoms(v for v in order if v in found.live_in)}".rstrip()]
        lines.append(f"live out: {self.printer.atoms(v for v in order if v in found.live_out)}".rstrip())
        dead: list[str] = []
        for eqn in reversed(found.dropped):
            dead.append(f"dead: {print_eqn(eqn, self.printer)}" + (f"  # {eqn.loc}" if eqn.loc is not None else ""))
        self.around.insert(0, [*lines, *dead])

    def text(self) -> str:
        """Returns the report as text."""
        out = [self.title]
        for number, task in enumerate(self.program.tasks):
            out.append(f"task {number}" + (f" `{task.name}`" if task.name else ""))
            out += [f"  {line}" for line in (*self.around[number][:2], *self.facts[number], *self.around[number][2:])]
        return "\n".join(out) + "\n"
