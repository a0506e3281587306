"""Code motion: what is the same in each iteration is computed once, in front of the loop or in the head of the task.

Loop-invariant code motion:

Before:  for k in 0:i32 : n : 1:i32      After:  a: f32 = mul s s
           a: f32 = mul s s                      for k in 0:i32 : n : 1:i32
           b: f32 = load x k                       b: f32 = load x k
           c: f32 = add a b                        c: f32 = add a b
           accum[op=add] y c i                     accum[op=add] y c i

Constant extraction, of what is the same for all iterations of a task:

Before:  range_for i in 0:i32 : n        After:  range_for i in 0:i32 : n
           a: f32 = load dt                        head
           b: f32 = mul a a                          a: f32 = load dt
           c: f32 = load x i                         b: f32 = mul a a
           d: f32 = mul b c                        c: f32 = load x i
           store y d i                             d: f32 = mul b c
                                                   store y d i

A pure equation moves out of every loop that its operands do not depend on, even if the loop may not run: nothing traps,
so speculative execution is harmless. (In a program to be differentiated it is not if a slope may be infinite:
`analysis/slopes`.) A load moves only if no equation of the loop writes the reference, and
only if it would surely be executed (the loop surely runs and no `if` is passed), or cannot fail: its indices have
ranges inside the shape, and every element of what it reads holds a value: a parameter, or a buffer that an earlier task
has stored in full (`analysis/index`). A check moves only if it would surely be executed. A load passes a check that
stays only if its indices are in range anywhere, as that check may have proved them. For constant extraction the task is
the loop, and loops inside of it are as branches: what is in one may not be executed.

One walk, in which what moves gets another level. Never moves equations with blocks, atomics or cells. Every thread may
evaluate the head, so no load of memory that the task writes moves there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import FullBefore
from qdtrace.analysis.index.ranges import Ranges, TaskRanges
from qdtrace.analysis.index.trips import surely_runs, trip_count
from qdtrace.analysis.slopes import has_finite_slopes
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.faults import ITERATION, OF_SHARE
from qdtrace.ir.memory import written
from qdtrace.ir.primitives import CHECK, LOAD, Effect
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import levels_of, walk_eqns, walk_inside
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Callable, Container


def load_cannot_fail(eqn: Eqn, full: Container[Var], ranges: Ranges) -> bool:
    """Returns whether a load is of a reference in `full` at indices in range, so that it may be executed anywhere."""
    ref, *indices = eqn.invars
    return ranges.are_inside(ref, indices) and isinstance(ref, Var) and ref in full


@frozen
class LoopInvariant(TaskPass):
    """Moves invariant equations out of `for` and `while`."""

    name: ClassVar[str] = "loop_invariant"
    differentiable: bool = False
    """True if the program is to be differentiated."""

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.loops for e in walk_eqns(task.body)):
            return task
        return task.rebuilt(_Mover(task, program, differentiable=self.differentiable).rebuild_block(task.body))


@frozen
class ConstantExtraction(TaskPass):
    """Moves equations that are the same for all iterations to the head of a task."""

    name: ClassVar[str] = "constant_extraction"
    differentiable: bool = False
    """True if the program is to be differentiated."""

    def on_task(self, task: Task, program: Program) -> Task:
        if task.index is None or not _has_constants(task):
            return task
        mover = _Mover(task, program, differentiable=self.differentiable)
        mover.to_head = True
        head, changed = list(task.head), frozenset(written(walk_eqns(task.body)))
        mover.loops.append(_Loop(1, head, changed, bool(trip_count(task.start, task.stop))))
        mover.levels.update((v, 0) for e in head for v in e.outvars)
        return task.rebuilt(mover.rebuild_block(task.body), head)


def _has_constants(task: Task) -> bool:
    """Returns whether the body has an equation without blocks that uses nothing bound in it: others move after one."""
    bound: set[Var | None] = {task.index}
    for eqn in walk_eqns(task.body):
        for inner in eqn.blocks:
            bound.update(inner.params)
        effects = eqn.primitive.effects
        if (
            (not effects or eqn.primitive is LOAD or Effect.CHECK in effects)
            and not eqn.blocks
            and bound.isdisjoint([a for a in eqn.invars if a.__class__ is Var])
        ):
            return True
        bound.update(eqn.outvars)
    return False


@mutable(slots=True)
class _Loop:
    """A loop around the current place, or the task."""

    level: int
    """The number of blocks around what its body binds."""
    before: list[Eqn]
    """Equations in front of the loop, or the head."""
    written: frozenset[Var]
    surely_runs: bool = False
    """True if its current block surely runs at least once."""
    ifs: int = 0
    """Number of branches between the loop and the current place (or the next loop inside)."""
    checks: bool = False
    """True if a check before the current place stays in the loop."""
    conditions: bool = False
    """True if such a check is a condition of the user's."""


class _Mover(Rebuilder):
    def __init__(self, task: Task, program: Program, *, differentiable: bool) -> None:
        super().__init__()
        self.differentiable = differentiable
        self.full = FullBefore(program, task)
        self.ranges = TaskRanges(task)
        self.loops: list[_Loop] = []
        self.to_head = False
        """True if equations move to the head of the task alone: loops are passed as branches are."""
        self.levels = levels_of(task)

    def _telling_less(self, check: Eqn, level: int) -> Eqn:
        """Returns a check that tells what is known in front of the loops of this level, without the index of one."""
        condition, _, *values = check.invars
        told = str(check.params["told"]).removeprefix(ITERATION).removeprefix(OF_SHARE).removeprefix(": ")
        if not told or self._level(tuple(values)) > level:
            return Eqn(CHECK, (condition,), (), {"message": check.params["message"]}, (), check.loc)
        return Eqn(CHECK, (condition, *values), (), {**check.params, "told": told}, (), check.loc)

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or moves it in front of a loop."""
        if eqn.blocks:
            super().visit(eqn)
            return
        if not self.loops:  # no variable is ever replaced
            self.stack[-1].eqns.append(eqn)
            return
        effects = eqn.primitive.effects
        innermost = len(self.loops)
        if not effects:
            level = self._level(eqn.invars)
            if self.differentiable and level < innermost and not has_finite_slopes(eqn):
                level = self._lowest(level, lambda loop: loop.surely_runs and not loop.ifs)
        elif eqn.primitive is LOAD:
            level = self._load_level(eqn)
        elif Effect.CHECK in effects:
            # Surely executed from there, so that code that is not executed raises nothing; no condition is passed.
            decided = eqn.invars[:1] if eqn.primitive is CHECK else eqn.invars
            level = self._lowest(self._level(decided), lambda p: p.surely_runs and not p.ifs and not p.conditions)
            if level < self._level(eqn.invars):
                eqn = self._telling_less(eqn, level)
            if level:
                loop = self.loops[level - 1]
                loop.checks, loop.conditions = True, loop.conditions or eqn.primitive is CHECK
        else:
            level = innermost
        if level == innermost:
            self.stack[-1].eqns.append(eqn)
            return
        self.loops[level].before.append(eqn)
        self.levels.update(dict.fromkeys(eqn.outvars, self.loops[level].level - 1))

    def _level(self, atoms: tuple[Atom, ...]) -> int:
        """Returns the number of loops that make one of the values anew in each iteration."""
        of, highest = self.levels, 0
        for a in atoms:
            if isinstance(a, Var) and (found := of.get(a, 0)) > highest:
                highest = found
        if highest >= self.loops[-1].level:  # inner loops have higher ones
            return len(self.loops)
        return sum(1 for loop in self.loops if loop.level <= highest)

    def _lowest(self, lowest: int, may_leave: Callable[[_Loop], bool]) -> int:
        """Returns the lowest level, from `lowest` on, that is reached by leaving loops that may be left."""
        level = len(self.loops)
        while level > lowest and may_leave(self.loops[level - 1]):
            level -= 1
        return level

    def _load_level(self, eqn: Eqn) -> int:
        ref, *indices = eqn.invars

        def may_leave(loop: _Loop) -> bool:
            if ref in loop.written:
                return False
            surely = loop.surely_runs and not loop.ifs and (not loop.checks or self.ranges.are_inside(ref, indices))
            return surely or load_cannot_fail(eqn, self.full, self.ranges)

        return self._lowest(self._level(eqn.invars), may_leave)

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns the equation rebuilt; equations that move out of a loop have been appended before it."""
        if not self._is_left(eqn):
            return super().rebuild_eqn(eqn)
        self.ranges.enter(eqn)
        self.loops.append(_Loop(self.level + 1, self.current.eqns, frozenset(written(walk_inside(eqn)))))
        rebuilt = super().rebuild_eqn(eqn)
        self.loops.pop()
        return rebuilt

    def _is_left(self, eqn: Eqn) -> bool:
        """Returns whether equations may move to the front of a loop."""
        return eqn.primitive.loops and not self.to_head

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds a block of a branch or loop."""
        if not self.loops:
            return super().region(eqn, number)
        loop = self.loops[-1]
        is_passed = not self._is_left(eqn)
        if not is_passed:
            # The condition of a `while` is evaluated at least once.
            loop.surely_runs = number == 0 and surely_runs(eqn)
        loop.ifs += is_passed
        rebuilt = super().region(eqn, number)
        loop.ifs -= is_passed
        return rebuilt
