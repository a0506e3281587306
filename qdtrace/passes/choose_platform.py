"""Choices by platform, made for one platform: the other branches are not looked at, as they may be refused there.

Before:  p: bool = platform[names="cuda rocm"]     After, on a CPU:  b: f32 = exp a
         b: f32 = if p
           c: f32 = sin a
           yield c
         else
           d: f32 = exp a
           yield d

It runs before all other passes, so emitters and rules never see a `platform`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.ir.platforms import HOST, is_platform
from qdtrace.ir.primitives import IF, PLATFORM
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn, Program, Task


@frozen
class ChoosePlatform(TaskPass):
    """Makes choices for a platform of JAX. Raises UnsupportedError if the program has no code for it."""

    platform: str = HOST

    name: ClassVar[str] = "choose_platform"

    def on_task(self, task: Task, program: Program) -> Task:
        """Returns the task without choices."""
        del program
        asks = any(e.primitive is PLATFORM for e in task.all_eqns)
        return _OnPlatform(self.platform).rebuild_task(task) if asks else task


class _OnPlatform(Rebuilder):
    def __init__(self, platform: str) -> None:
        super().__init__()
        self.platform = platform

    def visit(self, eqn: Eqn) -> None:
        if eqn.primitive is PLATFORM:
            self.env[eqn.outvars[0]] = literal(is_platform(eqn, self.platform), DType.bool)
            return
        chosen = self.atom(eqn.invars[0]) if eqn.primitive is IF else None
        if not isinstance(chosen, Literal):
            super().visit(eqn)
            return
        block = eqn.blocks[0 if chosen.value else 1]  # the other one is not looked at: it may be refused here
        for inner in block.eqns:
            self.visit(inner)
        self.env.update(zip(eqn.outvars, self.atoms(block.results), strict=True))
