"""The base class of passes: a frozen dataclass with a name that maps a program to a program.

A pass is pure. It returns the *same object* if it changed nothing: the fixed point of `simplify` and the pipelines
see progress by identity. The program is valid before and after a pass, not necessarily in between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.ir.walk import task_refs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.ir.program import Literal, Program, Task, Var


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


@frozen
class ContentPass(Pass):
    """A pass that settles how initial contents come about, each at the first task that uses its buffer."""

    def __call__(self, program: Program) -> Program:
        """Returns the program without the initial contents that its tasks make unnecessary."""
        left, waiting = dict(program.initial), dict(program.initial)
        tasks: list[Task] = []
        for task in program.tasks:
            met = {ref: waiting.pop(ref) for ref in task_refs(task) if ref in waiting}
            made, settled = self.on_first_use(task, met) if met else (task, ())
            tasks.append(made)
            for ref in settled:
                del left[ref]
        return program if len(left) == len(program.initial) else replace(program, tasks=tuple(tasks), initial=left)

    def on_first_use(self, task: Task, met: Mapping[Var, Literal]) -> tuple[Task, Collection[Var]]:
        """Returns the task for buffers of undefined content, and those out of `met` that may be undefined."""
        raise AssertionError(f"{type(self).__name__} has no on_first_use")
