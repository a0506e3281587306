"""Unrolls a `for` to a constant end from a start of few possible values into copies of its body.

Before:  s: i32 = select p 0:i32 1:i32                              After:  q: bool = le s 0:i32
         y: f32 = for c in s : 3:i32 : 1:i32 carry d = x                    z: f32 = if q
           f: bool = eq c 0:i32                                               a: f32 = mul x v
           w: f32 = select f v u                                              yield a
           a: f32 = mul d w                                                 else
           yield a                                                            yield x
                                                                            b: f32 = mul z u
                                                                            y: f32 = mul b u

(after simplify.) Iterations that only some starts have are under a branch; once the index is above every start, the
copies are straight code. Such loops run over the stages of a Runge-Kutta step: the first stage of a step is the last of
the step before, except in the first step. With a constant index, rows of the tableau are constants and stages values.

A loop is unrolled if it keeps no loop and no private array inside, its start has a range of at most `STARTS` values,
and

- it has at most `Machine.unrolled` iterations and operations of all copies; or
- more than half of its body are choices by the index, which fold (`analysis/specialised`), and the rest of all
  copies is within `Machine.unrolled_away`.

Measured on the CPU with AVX-512, Tsit5 with step size control, the stages as copies against the loop: 0.5 of the time
for two components, 0.4 for three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.cost import code_size
from qdtrace.analysis.index.ranges import TaskRanges
from qdtrace.analysis.machine import CPU
from qdtrace.analysis.specialised import specialised
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import CELL, FOR, IF
from qdtrace.ir.program import Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from qdtrace.analysis.machine import Machine

STARTS = 4
"""Largest number of values that the start may have."""


@frozen
class UnrollGuarded(TaskPass):
    """Replaces short loops from one of few starts by copies of their bodies, the first ones under branches."""

    name: ClassVar[str] = "unroll_guarded"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive is FOR for e in walk_eqns(task.body)):
            return task
        return task.rebuilt(_Unroller(task, self.machine).rebuild_block(task.body))


class _Unroller(Rebuilder):
    def __init__(self, task: Task, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._ranges = TaskRanges(task)
        self._room = machine.task_cost - code_size(task.body)

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or the copies of a loop's body."""
        starts = self._starts(eqn) if eqn.primitive is FOR else range(0)
        if starts and self._pays(eqn, starts[0]):
            self._unroll(eqn, starts)
            return
        self._ranges.enter(eqn)
        super().visit(eqn)

    def _starts(self, loop: Eqn) -> range:
        """Returns the values that the start of a loop to a constant end may have; nothing for any other loop."""
        start, stop, step = loop.bounds
        if isinstance(start, Literal) or not isinstance(stop, Literal) or step != literal(1, step.dtype):
            return range(0)
        low, high = self._ranges.of(start)
        return range(low, high + 1) if high - low < STARTS else range(0)

    def _pays(self, loop: Eqn, first: int) -> bool:
        (body,), stop = loop.blocks, loop.bounds[1]
        assert isinstance(stop, Literal)
        trips = max(0, int(stop.value) - first)
        if trips > self._machine.unrolled_away.trips:
            return False
        size = code_size(body)
        if trips * size > self._room or any(e.primitive.loops for e in walk_eqns(body)):
            return False
        left = specialised(body, [loop.index])
        if any(e.primitive is CELL and e.outvars[0] in left.kept for e in walk_eqns(body)):
            return False
        limit = self._machine.unrolled_away if 2 * left.size < size else self._machine.unrolled
        if not limit.allows(trips, trips * left.size):
            return False
        self._room -= trips * size
        return True

    def _unroll(self, loop: Eqn, starts: range) -> None:
        self.loc = loop.loc
        start, stop, _ = self.atoms(loop.bounds)
        carries = self.atoms(loop.initials)
        assert isinstance(stop, Literal)
        for value in range(starts[0], int(stop.value)):
            at = literal(value, start.dtype)
            if value >= starts[-1]:
                carries = self.copy_block(loop.blocks[0], (at, *carries))
                continue
            runs = self("le", start, at)
            with self.block() as taken:
                made = self.copy_block(loop.blocks[0], (at, *carries))
            blocks = (taken.close(made), Block((), (), carries))
            carries = tuple([Var(v.type, v.hint) for v in loop.outvars])
            self.append(Eqn(IF, (runs,), carries, {}, blocks, loop.loc))
        self.env.update(zip(loop.outvars, carries, strict=True))
