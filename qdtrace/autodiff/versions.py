"""Versions of memory between tasks: tasks run again so that each reverse task finds memory as its task found it.

A task that writes a reference makes a new version of it. A version that a reverse task reads keeps memory of its own:
the next writer gets a copy. A version that nothing reads any more gives its memory to the next one, so a chain of
updates in place stays in place. Parameters are never written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.copies import copy_task
from qdtrace.ir.memory import written
from qdtrace.ir.program import Program, Task, Var, is_global, literal
from qdtrace.ir.rebuild import Rebuilder

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping


class Versions:
    """The tasks that make the versions of a program's memory, and the buffers that hold them."""

    def __init__(
        self, program: Program, needed: Iterable[tuple[int, Var]], left_out: Container[int] = frozenset()
    ) -> None:
        """`needed` has pairs of a task's number and a reference whose content before that task is needed later;
        `left_out` are numbers of tasks whose results nobody needs."""
        self.tasks: list[Task] = []
        self.buffers: list[Var] = []
        self.initial = {}
        self.before: dict[tuple[int, Var], Var] = {}
        """References that hold the content before a task, by the task's number and the program's reference.

        The number of all tasks stands for the content after the last one.
        """
        wanted = set(needed)
        current: dict[Var, Var] = {v: v for v in program.params}
        held: set[Var] = set(program.params)
        for var in program.buffers:
            current[var] = self._buffer(var)
            start = program.initial.get(var)
            # Elements that nothing was stored into are zero, as copies read every element.
            self.initial[current[var]] = literal(0, var.dtype) if start is None else start
        for number, task in enumerate(program.tasks):
            for ref in current:
                self.before[number, ref] = current[ref]
            held |= {current[ref] for k, ref in wanted if k == number}
            if number in left_out:
                continue
            written = written_by(task)
            for ref in written:
                if current[ref] in held:
                    new = self._buffer(ref)
                    self.initial[new] = literal(0, ref.dtype)
                    self.tasks.append(copy_task(current[ref], new))
                    current[ref] = new
            self.tasks.append(with_memory(task, current))
        self.before |= {(len(program.tasks), ref): version for ref, version in current.items()}

    def _buffer(self, like: Var) -> Var:
        var = Var(like.type, like.hint)
        self.buffers.append(var)
        return var


def written_by(task: Task) -> dict[Var, None]:
    """Returns the global references that a task writes, in order."""
    return dict.fromkeys(filter(is_global, written(task.all_eqns)))


def with_memory(task: Task, memory: Mapping[Var, Var]) -> Task:
    """Returns the task with references replaced by those in `memory`."""

    return Rebuilder(dict(memory)).rebuild_task(task)
