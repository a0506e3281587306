"""Platforms of JAX, and programs that differ by platform: the primitive `platform`.

    p: bool = platform[names="cuda rocm", refused=""]

is true if the program runs on one of these. If `refused` is not empty, the program has no code for them: it is refused
there, with this text. The trace keeps the choice, as one trace may be lowered for several platforms; the first pass,
`passes/choose_platform`, makes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.errors import UnsupportedError
from qdtrace.ir.primitives import PLATFORM

if TYPE_CHECKING:
    from qdtrace.ir.program import Eqn, Program

PLATFORMS = ("cpu", "cuda", "rocm")
"""Platforms of JAX that have a backend of that name."""
HOST = "cpu"
"""The platform of the reference interpreter."""


def asks_platform(program: Program) -> bool:
    """Returns whether the program has a choice by platform."""
    return any(e.primitive is PLATFORM for e in program.all_eqns)


def is_platform(eqn: Eqn, platform: str) -> bool:
    """Returns the value of a `platform` equation; raises UnsupportedError if it refuses the platform."""
    if platform not in eqn.params["names"].split():
        return False
    if eqn.params["refused"]:
        raise UnsupportedError(eqn.params["refused"], loc=eqn.loc, help=eqn.params["help"])
    return True
