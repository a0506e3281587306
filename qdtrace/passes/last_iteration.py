"""Last iterations: removes code of a loop's last iteration that only a next one would need.

Before:  s: f32 = for k in 0:i32 : 9:i32 : 1:i32 carry c = x     After:  s: f32 = for k in 0:i32 : 8:i32 : 1:i32 ...
           store kept c k                                                 store kept c k
           d: f32 = sin c                                                 d: f32 = sin c
           yield d                                                        yield d
                                                                        store kept s 8:i32

A loop whose results nobody reads runs for what its iterations leave in memory, here the checkpoints of a derivative.
Only the equations that do so remain of the last iteration, after a loop with one iteration less: this saves a tenth of
the sweep of ten segments of ten steps.

Applies to loops of few constant trips (`MOST_TRIPS`), without loops or branches inside, which write private memory
only, by less than a quarter of their code; and only for machines whose iterations are long segments: on a CPU the
gradient of 100 steps takes 1.17 of the time when its sweep has 99.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.cost import eqn_size
from qdtrace.analysis.index.trips import loop_values
from qdtrace.analysis.machine import GPU
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params
from qdtrace.ir.dataflow import slice_of
from qdtrace.ir.primitives import FOR, Effect
from qdtrace.ir.program import is_local, literal
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.ir.walk import used_in_block, walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var

FEWEST_TRIPS, MOST_TRIPS = 3, 128
"""Range of trip counts for which the last iteration is split off; shorter loops become straight code."""
PART = 4
"""Smallest ratio of the code of an iteration to the code of what it leaves in memory."""


@frozen
class LastIteration(TaskPass):
    """Shortens loops that run only for what they leave in memory."""

    name: ClassVar[str] = "last_iteration"
    machine: Machine = GPU

    def on_task(self, task: Task, program: Program) -> Task:
        if self.machine.reverse.steps == 1:
            return task
        if not any(e.primitive is FOR and e.outvars for e in walk_eqns(task.body)):
            return task
        return task.rebuilt(_Shortener(task.body).rebuild_block(task.body))


class _Shortener(Rebuilder):
    """Rebuilds the body of a task with shorter loops."""

    def __init__(self, body: Block) -> None:
        super().__init__()
        self._read = set(used_in_block(body))

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or a loop with one iteration less and what the last one leaves in memory."""
        left = _left_in_memory(eqn) if self._read.isdisjoint(eqn.outvars) else ()
        if not left:
            super().visit(eqn)
            return
        start, _, step, *initials = eqn.invars
        values = loop_values(*eqn.bounds)
        assert values is not None
        last = literal(values.start + values.step * (values.count - 1), start.dtype)
        self.append(self.rebuild_eqn(eqn.rebuilt((start, last, step, *initials), eqn.blocks, eqn.outvars)))
        body = eqn.blocks[0]
        env: dict[Var, Atom] = {**self.env, body.params[0]: last}
        env.update(zip(carried_params(eqn, body), eqn.outvars, strict=True))
        copier = Copier(env)
        for one in copier.rebuild_eqns(left):
            self.append(one)


def _left_in_memory(loop: Eqn) -> Sequence[Eqn]:
    """Returns the equations that compute what an iteration leaves in memory; none if the loop stays as it is."""
    if loop.primitive is not FOR or not loop.outvars:
        return ()
    values, body = loop_values(*loop.bounds), loop.blocks[0]
    if values is None or not FEWEST_TRIPS <= values.count <= MOST_TRIPS:
        return ()
    if any(map(_stays, body.eqns)):
        return ()
    found = slice_of(body.eqns, (), kept=lambda e: e.primitive.writes or Effect.CHECK in e.primitive.effects)
    return found if sum(map(eqn_size, found)) * PART <= sum(map(eqn_size, body.eqns)) else ()


def _stays(eqn: Eqn) -> bool:
    """Returns whether a loop with this equation in its body stays as it is."""
    is_fixed = not {Effect.ALLOC, Effect.LANES}.isdisjoint(eqn.primitive.effects)
    return bool(eqn.blocks) or is_fixed or (eqn.primitive.writes and not is_local(eqn.invars[0]))
