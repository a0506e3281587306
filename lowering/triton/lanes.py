"""Which variables of a task are blocks of lanes, and which branches lanes disagree on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.ir.faults import checks_of
from qdtrace.ir.primitives import IF, LOAD
from qdtrace.ir.program import Block, Eqn, Task, Var, is_global

if TYPE_CHECKING:
    from collections.abc import Iterator


def analyse_lanes(task: Task, varying: frozenset[Var] = frozenset()) -> Uniformity:
    """Uniformity where a block of lanes runs each equation once.

    A load at an index that all lanes share is one scalar load where some lane is surely active. In a branch that lanes
    disagree on, or behind a check, there may be none, and the index may be anything: there it is a load of each lane.
    `varying` are variables that differ by the way the task is run.
    """
    extra = varying
    while True:
        found = analyse_uniformity(task, varying=extra)
        if task.kind == "serial":
            return found
        everywhere = bool(checks_of(task))
        guarded = frozenset(_loads(task.body, found.divergent, everywhere))
        if guarded <= extra:
            return found
        extra |= guarded


def divergent_loop(block: Block, lanes: Uniformity, *, under: bool = False) -> tuple[Eqn, str] | None:
    """A loop that lanes leave apart or that only some of them reach, and which it is; None where there is none."""
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
