"""Constant extraction: what is the same for all iterations of a task moves to its head, evaluated once.

Before:  range_for i in 0:i32 : n        After:  range_for i in 0:i32 : n
           a: f32 = load dt                        head
           b: f32 = mul a a                          a: f32 = load dt
           c: f32 = load x i                         b: f32 = mul a a
           d: f32 = mul b c                        c: f32 = load x i
           store y d i                             d: f32 = mul b c
                                                   store y d i

Pure equations of constants and values of the head move from anywhere in the body: nothing traps. A load moves where
the task does not write the reference, and where it is surely executed (the task surely runs, and the load is in no
loop or branch, and in range where a check in front of it stays) or cannot fail. A check moves where it is surely made.

Never moves equations with blocks, nor what reads memory that the task writes: every thread may evaluate the head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.effects import summarise
from qdtrace.analysis.ranges import Ranges
from qdtrace.analysis.stored import FullBefore
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, is_global
from qdtrace.passes.base import TaskPass
from qdtrace.passes.loop_invariant import in_range, load_cannot_fail

if TYPE_CHECKING:
    from collections.abc import Collection, Container


@dataclass(frozen=True)
class ConstantExtraction(TaskPass):
    """Moves what all iterations share to the head of a `range_for`."""

    name: ClassVar[str] = "constant_extraction"

    def on_task(self, task: Task, program: Program) -> Task:
        if task.kind != "range_for":
            return task
        written = summarise(task.body)[0].writes
        mover = _Mover(task, FullBefore(program, task), written)
        body = mover.block(task.body, surely=mover.runs)
        return task if body is task.body else replace(task, head=(*task.head, *mover.moved), body=body)


class _Mover:
    def __init__(self, task: Task, full: Container[Var], written: Collection[Var]) -> None:
        self.full = full
        self.written = written
        self.moved: list[Eqn] = []
        self.defined: dict[Atom, Eqn] = {}
        """Checks that were moved. Of constants and their results ranges are known; others do not matter here."""
        self.ranges = Ranges(self.defined.get)
        self.checks = False
        """A check in front of the current place stays."""
        self.conditions = False
        """And it is one of the user's: no check moves in front of it."""
        self.shared = {v for e in task.head for v in e.outvars}
        start, stop = task.start, task.stop
        self.runs = isinstance(start, Literal) and isinstance(stop, Literal) and bool(start.value < stop.value)

    def block(self, block: Block, *, surely: bool) -> Block:
        kept: list[Eqn] = []
        shared = self.shared
        for eqn in block.eqns:
            if eqn.blocks:
                inner = tuple([self.block(b, surely=False) for b in eqn.blocks])
                same = all(a is b for a, b in zip(inner, eqn.blocks, strict=True))
                kept.append(eqn if same else replace(eqn, blocks=inner))
                continue
            effects = eqn.primitive.effects
            moves = False
            if not effects:
                moves = all([a.__class__ is Literal or a in shared for a in eqn.invars])  # noqa: C419 - twice as fast
            elif eqn.primitive.name == "load" and eqn.invars[0] not in self.written:
                uniform = all(a.__class__ is Literal or a in shared for a in eqn.invars[1:])
                movable = uniform and is_global(eqn.invars[0])
                sure = surely and (not self.checks or in_range(eqn, self.ranges))
                moves = movable and (sure or load_cannot_fail(eqn, self.full, self.ranges))
            elif Effect.CHECK in effects:
                uniform = all(a.__class__ is Literal or a in shared for a in eqn.invars)
                moves = surely and uniform and not self.conditions
                if moves:
                    self.defined.update(dict.fromkeys(eqn.outvars, eqn))
                else:
                    self.checks, self.conditions = True, self.conditions or eqn.primitive.name == "check"
            if moves:
                self.moved.append(eqn)
                shared.update(eqn.outvars)
            else:
                kept.append(eqn)
        if len(kept) == len(block.eqns) and all(a is b for a, b in zip(kept, block.eqns, strict=True)):
            return block
        return Block(block.params, tuple(kept), block.results)
