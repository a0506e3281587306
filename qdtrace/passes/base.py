"""What a pass is: a frozen dataclass with a name, called with a program and giving a program.

A pass is pure. It gives the *same object* when it changed nothing: the fixed point of `simplify` and the pipelines
see progress by identity. The program is valid before and after a pass, not necessarily in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from qdtrace.ir.program import Program, Task


@dataclass(frozen=True)
class Pass:
    """A transformation of programs."""

    name: ClassVar[str]
    """What pipelines, dumps and the command line call it."""

    def __call__(self, program: Program) -> Program:
        """The transformed program; the same object when nothing changed."""
        raise AssertionError(f"{type(self).__name__} is not callable")


@dataclass(frozen=True)
class TaskPass(Pass):
    """A pass that looks at one task at a time, so its time is linear in the number of tasks."""

    def __call__(self, program: Program) -> Program:
        """The program with each task transformed; a task that `on_task` gives None for is dropped."""
        return program.map_tasks(lambda task: self.on_task(task, program))

    def on_task(self, task: Task, program: Program) -> Task | None:
        """The transformed task; the same object when nothing changed."""
        raise AssertionError(f"{type(self).__name__} has no on_task")
