"""The base class of passes: a frozen dataclass with a name that maps a program to a program.

A pass is pure. It returns the *same object* if it changed nothing: the fixed point of `simplify` and the pipelines
see progress by identity. The program is valid before and after a pass, not necessarily in between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.ir.program import Program, Task


@frozen
class Pass:
    """A transformation of programs."""

    name: ClassVar[str]
    """Name of the pass in pipelines, dumps and the command line."""

    def __call__(self, program: Program) -> Program:
        """Returns the transformed program, or the same object if nothing changed."""
        raise AssertionError(f"{type(self).__name__} is not callable")


@frozen
class TaskPass(Pass):
    """A pass that looks at one task at a time, so its time is linear in the number of tasks."""

    def __call__(self, program: Program) -> Program:
        """Returns the program with each task transformed; a task for which `on_task` returns None is dropped."""
        return program.map_tasks(lambda task: self.on_task(task, program))

    def on_task(self, task: Task, program: Program) -> Task | None:
        """Returns the transformed task, or the same object if nothing changed."""
        raise AssertionError(f"{type(self).__name__} has no on_task")
