"""Constant extraction: moves equations that are the same for all iterations of a task to its head.

Before:  range_for i in 0:i32 : n        After:  range_for i in 0:i32 : n
           a: f32 = load dt                        head
           b: f32 = mul a a                          a: f32 = load dt
           c: f32 = load x i                         b: f32 = mul a a
           d: f32 = mul b c                        c: f32 = load x i
           store y d i                             d: f32 = mul b c
                                                   store y d i

Pure equations of constants and values of the head move from anywhere in the body, as none of them traps; in a program
to be differentiated only if their slopes are finite (`analysis/slopes`) or they are in no loop or branch. A load moves
if the task does not write the reference, and it is surely executed (the task surely runs, and the load is in no loop
or branch, and in range if a check before it stays) or cannot fail. A check moves if it is surely executed.

Never moves equations with blocks, nor loads of memory that the task writes: every thread may evaluate the head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.effects import summarise
from qdtrace.analysis.index.definite_stores import FullBefore
from qdtrace.analysis.index.ranges import Ranges
from qdtrace.analysis.index.trips import trip_count
from qdtrace.analysis.slopes import has_finite_slopes
from qdtrace.ir.primitives import CHECK, LOAD, Effect
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, is_global
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.passes.base import TaskPass
from qdtrace.passes.loop_invariant import load_cannot_fail

if TYPE_CHECKING:
    from collections.abc import Collection, Container


@dataclass(frozen=True)
class ConstantExtraction(TaskPass):
    """Moves equations that are the same for all iterations to the head of a task."""

    name: ClassVar[str] = "constant_extraction"
    differentiable: bool = False
    """True if the program is to be differentiated."""

    def on_task(self, task: Task, program: Program) -> Task:
        if task.kind != "range_for":
            return task
        written = summarise(task.body)[0].writes
        mover = _Mover(task, FullBefore(program, task), written, differentiable=self.differentiable)
        body = mover.rebuild_block(task.body)
        return task.rebuilt(body, (*task.head, *mover.moved))


class _Mover(Rebuilder):
    def __init__(self, task: Task, full: Container[Var], written: Collection[Var], *, differentiable: bool) -> None:
        super().__init__()
        self.differentiable = differentiable
        self.full = full
        self.written = written
        self.moved: list[Eqn] = []
        self.defined: dict[Atom, Eqn] = {}
        """Checks that were moved, by result: `ranges` needs no other definitions."""
        self.ranges = Ranges(self.defined.get)
        self.checks = False
        """True if a check before the current place stays in the body."""
        self.conditions = False
        """True if such a check is a condition of the user's: no check moves before it."""
        self.shared = {v for e in task.head for v in e.outvars}
        self.surely = bool(trip_count(task.start, task.stop))
        """True if the current place is surely executed."""
        self.inside = False
        """True if the current place is inside of a loop or branch."""

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds a block that may not be executed."""
        outside = self.surely, self.inside
        self.surely, self.inside = False, True
        rebuilt = super().region(eqn, number)
        self.surely, self.inside = outside
        return rebuilt

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or moves it to the head."""
        if not eqn.blocks and self._moves(eqn):
            self.moved.append(eqn)
            self.shared.update(eqn.outvars)
        else:
            super().visit(eqn)

    def _moves(self, eqn: Eqn) -> bool:
        effects = eqn.primitive.effects
        if not effects:
            if self.differentiable and self.inside and not has_finite_slopes(eqn):
                return False
            return self._is_shared(eqn.invars)
        if eqn.primitive is LOAD and eqn.invars[0] not in self.written:
            if not is_global(eqn.invars[0]) or not self._is_shared(eqn.invars[1:]):
                return False
            sure = self.surely and (not self.checks or self.ranges.are_inside(eqn.invars[0], eqn.invars[1:]))
            return sure or load_cannot_fail(eqn, self.full, self.ranges)
        if Effect.CHECK not in effects:
            return False
        if self.surely and not self.conditions and self._is_shared(eqn.invars):
            self.defined.update(dict.fromkeys(eqn.outvars, eqn))
            return True
        self.checks, self.conditions = True, self.conditions or eqn.primitive is CHECK
        return False

    def _is_shared(self, atoms: tuple[Atom, ...]) -> bool:
        shared = self.shared
        return all([a.__class__ is Literal or a in shared for a in atoms])  # noqa: C419 - twice as fast
