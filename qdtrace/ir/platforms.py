"""Platforms of JAX, and programs that differ by platform: the primitive `platform`.

    p: bool = platform[names="cuda rocm", refused=""]

is true if the program runs on one of these. If `refused` is not empty, the program has no code for them: it is refused
there, with this text. The trace keeps the choice, as one trace may be lowered for several platforms; `on_platform`
makes it before any pass runs, so emitters never see it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import UnsupportedError
from qdtrace.ir.primitives import IF, PLATFORM
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_program

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn, Program

PLATFORMS = ("cpu", "cuda", "rocm")
"""Platforms of JAX that have a backend of that name."""
HOST = "cpu"
"""The platform of the reference interpreter."""


def asks_platform(program: Program) -> bool:
    """Returns whether the program has a choice by platform."""
    return any(e.primitive is PLATFORM for e in walk_program(program))


def is_platform(eqn: Eqn, platform: str) -> bool:
    """Returns the value of a `platform` equation; raises UnsupportedError if it refuses the platform."""
    if platform not in eqn.params["names"].split():
        return False
    if eqn.params["refused"]:
        raise UnsupportedError(eqn.params["refused"], loc=eqn.loc, help=eqn.params["help"])
    return True


def on_platform(program: Program, platform: str) -> Program:
    """Returns the program with its choices made for a platform, or the program itself if it has none.

    Raises:
        UnsupportedError: The program needs a branch that it does not have for the platform, or that was refused.
    """
    if not asks_platform(program):
        return program
    return program.map_tasks(lambda task: _OnPlatform(platform).rebuild_task(task))


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
