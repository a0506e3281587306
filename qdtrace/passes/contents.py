"""The base class of passes that settle how initial contents of buffers come about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.ir.program import Literal, Program, Task, Var


@frozen
class ContentPass(Pass):
    """A pass that settles how initial contents come about, each at the first task that uses its buffer."""

    def __call__(self, program: Program) -> Program:
        """Returns the program without the initial contents that its tasks make unnecessary."""
        left, waiting = dict(program.initial), dict(program.initial)
        tasks: list[Task] = []
        for task in program.tasks:
            met = {ref: waiting.pop(ref) for ref in task.refs if ref in waiting}
            made, settled = self.on_first_use(task, met) if met else (task, ())
            tasks.append(made)
            for ref in settled:
                del left[ref]
        return program if len(left) == len(program.initial) else replace(program, tasks=tuple(tasks), initial=left)

    def on_first_use(self, task: Task, met: Mapping[Var, Literal]) -> tuple[Task, Collection[Var]]:
        """Returns the task for buffers of undefined content, and those out of `met` that may be undefined."""
        raise AssertionError(f"{type(self).__name__} has no on_first_use")
