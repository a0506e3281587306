"""Private arrays that are too large for local memory lie in scratch: one copy for each thread that runs.

Local memory is kept for as many threads as a device can hold, whether they run or not; an array in scratch only for
those of the launch, which then take turns on the range. The elements of the threads of a warp lie side by side, so that
they are one access where the threads name the same element: `[warp][array][element][thread of the warp]`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowering.llvm.types import BYTES, PRIVATE
from lowering.tables import FIELD, round_up
from qdtrace.ir.primitives import CELL, LOAD
from qdtrace.ir.program import is_global, ref_type
from qdtrace.ir.walk import walk_eqns, walk_inside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.facts import TaskFacts
    from qdtrace.ir.program import Var

LOCAL_BYTES = 2048
"""Private memory of a thread that stays in local memory: for all threads of an H200, 550 MB."""
LOADING_BYTES = 4096
"""The same of a task whose loops load: what waits for memory needs all threads that can run, and such loops (rows,
neighbours) are short, so that their stacks stay in the nearest cache, where only local memory is written."""
LARGE = 256
"""Bytes of an array that goes to scratch, where one does."""
RUNNING = 384
"""Threads of a multiprocessor that have stacks in scratch: as many as have 168 registers each. 10 000 steps of an ODE
take 7 % more time with 256, no less with 512."""

SCRATCH_BYTES = 1 << 33
"""Memory of a device for the stacks of all threads that run: fewer run where each needs much."""


@dataclass(frozen=True, slots=True)
class Stacks:
    """The arrays of a thread in scratch."""

    offsets: Mapping[Var, int] = field(default_factory=dict["Var", int])
    """Bytes into those of the thread, if they were side by side."""
    nbytes: int = 0
    """Of a thread."""


def plan_stacks(facts: TaskFacts) -> Stacks:
    """Which private arrays of a task go to scratch."""
    if facts.private_bytes <= (LOADING_BYTES if _loops_load(facts) else LOCAL_BYTES):
        return Stacks()
    offsets: dict[Var, int] = {}
    end = 0
    for eqn in walk_eqns(facts.task.body):
        if eqn.primitive is CELL and ref_type(eqn.outvars[0]).nbytes >= LARGE:
            offsets[eqn.outvars[0]] = end
            end += round_up(ref_type(eqn.outvars[0]).size * BYTES[PRIVATE[eqn.outvars[0].dtype]], FIELD)
    return Stacks(offsets, end)


def _loops_load(facts: TaskFacts) -> bool:
    loops = (e for e in facts.task.body.eqns if e.primitive.loops)
    inside = (e for loop in loops for e in walk_inside(loop))
    return any(e.primitive is LOAD and is_global(e.invars[0]) for e in inside)
