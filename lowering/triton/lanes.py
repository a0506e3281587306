"""Uniformity of a task's variables and branches when a block of lanes runs each equation once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.ir.faults import checks_of
from qdtrace.ir.primitives import IF, LOAD
from qdtrace.ir.program import Block, Eqn, Task, Var, is_global

if TYPE_CHECKING:
    from collections.abc import Iterator


def analyse_lanes(task: Task, varying: frozenset[Var] = frozenset()) -> Uniformity:
    """Returns the uniformity of a task if a block of lanes runs each equation once.

    A load at a uniform index is one scalar load if some lane is certainly active. In a divergent branch, or behind a
    check, all lanes may be inactive and the index invalid: there each lane loads under its mask. `varying` are
    variables that the caller knows to differ between lanes.
    """
    extra = varying
    while True:
        found = analyse_uniformity(task, varying=extra)
        if task.kind == "serial":
            return found
        everywhere = bool(checks_of(task.all_eqns))
        guarded = frozenset(_loads(task.body, found.divergent, everywhere))
        if guarded <= extra:
            return found
        extra |= guarded


def divergent_loop(block: Block, lanes: Uniformity, *, under: bool = False) -> tuple[Eqn, str] | None:
    """Returns a loop that lanes leave at different times or that only some reach, with the reason, or None."""
    for eqn in block.eqns:
        if eqn.primitive.loops and (under or eqn in lanes.divergent):
            return eqn, (
                "a loop that only some iterations reach" if under else "a loop whose trips differ between iterations"
            )
        divergent = eqn.primitive is IF and eqn in lanes.divergent
        for inner in eqn.blocks:
            if (found := divergent_loop(inner, lanes, under=under or divergent)) is not None:
                return found
    return None


def _loads(block: Block, divergent: frozenset[Eqn], guarded: bool) -> Iterator[Var]:
    for eqn in block.eqns:
        if eqn.primitive is LOAD and guarded and is_global(eqn.invars[0]):
            yield eqn.outvars[0]
        for inner in eqn.blocks:
            yield from _loads(inner, divergent, guarded or eqn in divergent)
