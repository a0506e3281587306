"""Unrolls a `while` that counts to a constant from a start of few possible values into copies of its body.

Before:  s: i32 = select p 0:i32 1:i32                       After:  q: bool = le s 0:i32
         k: i32, y: f32 = while carry c = s, d = x                   z: f32 = if q
           t: bool = lt c 3:i32                                        a: f32 = mul x v
           test t                                                      yield a
           f: bool = eq c 0:i32                                      else
           w: f32 = select f v u                                       yield x
           a: f32 = mul d w                                          b: f32 = mul z u
           b: i32 = add c 1:i32                                      y: f32 = mul b u
           yield b, a

(after simplify.) Iterations that only some starts have are under a branch; once the counter is above every start, the
copies are straight code. Such loops run over the stages of a Runge-Kutta step: the first stage of a step is the last of
the step before, except in the first step. With a constant counter, rows of the tableau are constants and stages values.

A loop is unrolled if it keeps no loop and no private array inside, its start has a range of at most `STARTS` values,
and

- it has at most `Machine.unrolled` iterations and operations of all copies; or
- more than half of its body are choices by the counter, which fold (`analysis/specialised`), and the rest of all
  copies is within `Machine.unrolled_away`.

Measured on the CPU with AVX-512, Tsit5 with step size control, the stages as copies against the loop: 0.5 of the time
for two components, 0.4 for three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.cost import code_size
from qdtrace.analysis.index.induction import controlling_induction
from qdtrace.analysis.index.ranges import TaskRanges
from qdtrace.analysis.machine import CPU
from qdtrace.analysis.specialised import specialised
from qdtrace.ir.primitives import CELL, IF, WHILE
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, literal
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from qdtrace.analysis.index.induction import InductionVariable
    from qdtrace.analysis.machine import Machine

STARTS = 4
"""Largest number of values that the start of a counter may have."""


@dataclass(frozen=True)
class UnrollWhiles(TaskPass):
    """Replaces short loops that count by copies of their bodies."""

    name: ClassVar[str] = "unroll_whiles"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive is WHILE for e in walk_eqns(task.body)):
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
        if eqn.primitive is WHILE:
            counter = controlling_induction(eqn, self._ranges)
            if counter is not None and self._pays(eqn, counter):
                self._unroll(eqn, counter)
                return
        self._ranges.enter(eqn)
        super().visit(eqn)

    def _pays(self, loop: Eqn, counter: InductionVariable) -> bool:
        body = loop.blocks[1]
        low, high = counter.first
        trips = counter.trips[1]
        if high - low >= STARTS or trips > self._machine.unrolled_away.trips:
            return False
        size = code_size(body)
        if trips * size > self._room or any(e.primitive.loops for e in walk_eqns(body)):
            return False
        left = specialised(body, [body.params[counter.position]])
        if any(e.primitive is CELL and e.outvars[0] in left.kept for e in walk_eqns(body)):
            return False
        limit = self._machine.unrolled_away if 2 * left.size < size else self._machine.unrolled
        if not limit.allows(trips, trips * left.size):
            return False
        self._room -= trips * size
        return True

    def _unroll(self, loop: Eqn, counter: InductionVariable) -> None:
        self.loc = loop.loc
        carries = self.atoms(loop.invars)
        start = carries[counter.position]
        low, high = counter.first
        for value in range(low, counter.stop):
            at = literal(value, start.dtype)
            if value >= high:
                carries = self._copy(loop, counter, at, carries)
                continue
            runs = self("le", start, at)
            with self.block() as taken:
                made = self._copy(loop, counter, at, carries)
            blocks = (taken.close(made), Block((), (), carries))
            carries = tuple([Var(v.type, v.hint) for v in loop.outvars])
            self.append(Eqn(IF, (runs,), carries, {}, blocks, loop.loc))
        self.env.update(zip(loop.outvars, carries, strict=True))

    def _copy(
        self, loop: Eqn, counter: InductionVariable, at: Literal, carries: tuple[Atom, ...]
    ) -> tuple[Atom, ...]:
        """Appends a copy of one iteration and returns its next carries."""
        body = loop.blocks[1]
        given = [at if k == counter.position else c for k, c in enumerate(carries)]
        copier = Copier({**self.env, **dict(zip(body.params, given, strict=True))})
        for eqn in copier.rebuild_eqns(body.eqns):
            self.append(eqn)
        return copier.atoms(body.results)
