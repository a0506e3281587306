"""Unrolls inner loops that accumulate at offsets of a counter, where the copies are then gathered (`gather`).

Before:  for k in 0:i32 : 9:i32                   After:  accum[op=add] y a (i - 4), ..., accum[op=add] y i (i + 4)
           j: i32 = add i k; accum[op=add] y a (j - 4)

A loop longer than those that are unrolled anyway stays a loop as a rule. But the adjoint of a sum over nine neighbours
scatters, from threads that meet in elements, where straight code is gathered. So it is tried: the task that gathers is
kept only if nothing of it scatters any more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.trips import trip_count
from qdtrace.analysis.machine import CPU
from qdtrace.analysis.memory import TaskMemory
from qdtrace.frozen import frozen
from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import ACCUM, FOR
from qdtrace.ir.program import is_global
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import Pass
from qdtrace.passes.gather import GatherScatters
from qdtrace.passes.simplify import ROUNDS, Simplify
from qdtrace.passes.unroll import Unroll

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Eqn, Program, Task


@frozen
class UnrollScattering(Pass):
    """Unrolls loops whose accumulations then are gathered."""

    name: ClassVar[str] = "unroll_scattering"
    machine: Machine = CPU
    fast_math: bool = False
    constant_folding: bool = True
    share: bool = True
    rounds: int = ROUNDS

    def __call__(self, program: Program) -> Program:
        """Returns the program with such loops unrolled, or the same object if none is."""
        simplify = Simplify(
            fast_math=self.fast_math, constant_folding=self.constant_folding, share=self.share, rounds=self.rounds
        )
        unroll = Unroll(machine=replace(self.machine, unrolled=self.machine.unrolled_away))
        gather, most = GatherScatters(machine=self.machine), self.machine.unrolled_away.trips
        for number, task in enumerate(program.tasks):
            if not _scatters_in_loop(task, most):
                continue
            tried = unroll.on_task(task, program)
            if tried is task or _scatters_in_loop(tried, most):
                continue
            made = simplify(program.rebuilt([*program.tasks[:number], tried, *program.tasks[number + 1 :]]))
            if _met(gather(made)) < _met(gather(program)):
                program = made
        return program


def _scatters_in_loop(task: Task, most: int) -> bool:
    """Returns whether a loop of few trips accumulates into an array of all threads."""
    loops = (e for e in walk_eqns(task.body) if e.primitive is FOR and 1 < (trip_count(*e.bounds) or 0) <= most)
    return any(_is_scatter(e) for loop in loops for block in loop.blocks for e in walk_eqns(block))


def _is_scatter(eqn: Eqn) -> bool:
    return eqn.primitive is ACCUM and is_global(eqn.invars[0])


def _met(program: Program) -> int:
    """Returns into how many arrays tasks accumulate where iterations meet."""
    count = 0
    for task in program.tasks:
        memory = TaskMemory(task)
        refs = {reference(e) for e in task.all_eqns if _is_scatter(e)}
        count += sum(not memory.share_a_proof(memory.accesses[ref]) for ref in refs)
    return count
