"""Large private arrays in scratch: one copy for each thread that runs, in place of local memory.

Local memory is reserved for as many threads as a device can hold, whether they run or not; an array in scratch only for
those of the launch, which then take turns on the range. The copies of an element for the threads of a warp lie side by
side, so that they are one access if the threads use the same index: `[warp][array][element][thread of the warp]`.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from lowering.llvm.types import kept_bytes
from lowering.tables import FIELD, round_up
from qdtrace.analysis.cost import accesses, operations
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import CELL, LOAD
from qdtrace.ir.program import is_global, ref_type
from qdtrace.ir.walk import walk_eqns, walk_inside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.facts import TaskFacts
    from qdtrace.ir.program import Block, Var

LOCAL_BYTES = 2048
"""Private memory of a thread that stays in local memory: for all threads of an H200, 550 MB."""
WAITING_BYTES = 1 << 14
"""The same limit for a task that waits for memory: its loops load, or its private arrays are much of its work. All
threads that can run do then, and what they write is in the nearest cache. Tables of time warping (2.3 KiB) take 0.2 ms
in local memory and 3.2 in scratch. For all threads of an H200 it is 4.4 GB of 141."""
BUSY = 64
"""Operations for each access to private arrays below which these are much of the work. Stacks of an ODE in reverse have
170 to 370, and take as long in scratch; arrays of lanes 5 to 20."""
LARGE = 256
"""The fewest bytes of an array that goes to scratch, if the task has any there."""
RUNNING = 384
"""Resident threads per multiprocessor with stacks in scratch: each then has 168 registers. 10 000 steps of an ODE take
7 % more time with 256, no less with 512."""

SCRATCH_BYTES = 1 << 33
"""The most memory of a device for stacks: fewer threads run if each needs much."""


@frozen(slots=True)
class Stacks:
    """The private arrays of a thread that are in scratch."""

    offsets: Mapping[Var, int] = field(default_factory=dict["Var", int])
    """Byte offset of each array in the thread's stack, as if its elements were contiguous."""
    nbytes: int = 0
    """Bytes of one thread's stack."""


def plan_stacks(facts: TaskFacts) -> Stacks:
    """Returns the private arrays of a task that go to scratch."""
    if facts.private_bytes <= (WAITING_BYTES if _waits(facts.task.body) else LOCAL_BYTES):
        return Stacks()
    offsets: dict[Var, int] = {}
    end = 0
    for eqn in walk_eqns(facts.task.body):
        if eqn.primitive is CELL and ref_type(eqn.outvars[0]).nbytes >= LARGE:
            offsets[eqn.outvars[0]] = end
            end += round_up(kept_bytes(ref_type(eqn.outvars[0])), FIELD)
    return Stacks(offsets, end)


def _waits(body: Block) -> bool:
    loops = (e for e in body.eqns if e.primitive.loops)
    if any(e.primitive is LOAD and is_global(e.invars[0]) for loop in loops for e in walk_inside(loop)):
        return True
    return operations(body) < BUSY * accesses(body, shared=False)
