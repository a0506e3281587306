"""Loop-invariant code motion: a value that is the same in each iteration is computed once, before the loop.

Before:  for k in 0:i32 : n : 1:i32      After:  a: f32 = mul s s
           a: f32 = mul s s                      for k in 0:i32 : n : 1:i32
           b: f32 = load x k                       b: f32 = load x k
           c: f32 = add a b                        c: f32 = add a b
           accum[op=add] y c i                     accum[op=add] y c i

A pure equation moves out of every loop that its operands do not depend on, even if the loop may not run: nothing traps,
so speculative execution is harmless. (In a program to be differentiated it is not if a slope may be infinite:
`analysis/slopes`.) A load moves only if no equation of the loop writes the reference, and
only if it would surely be executed (the loop surely runs and no `if` is passed), or cannot fail: its indices have
ranges inside the shape, and every element of what it reads holds a value: a parameter, or a buffer that an earlier task
has stored in full (`analysis/index`). A check moves only if it would surely be executed. A load passes a check that
stays only if its indices are in range anywhere, as that check may have proved them.

One walk that records the depth of each value. Never moves equations with blocks, atomics or cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.effects import ModRef, summarise
from qdtrace.analysis.index.definite_stores import FullBefore
from qdtrace.analysis.index.ranges import Ranges, TaskRanges
from qdtrace.analysis.index.trips import surely_runs
from qdtrace.analysis.slopes import has_finite_slopes
from qdtrace.ir.primitives import CHECK, IF, LOAD, Effect
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Container


def load_cannot_fail(eqn: Eqn, full: Container[Var], ranges: Ranges) -> bool:
    """Returns whether a load is of a reference in `full` at indices in range, so that it may be executed anywhere."""
    ref, *indices = eqn.invars
    return ranges.are_inside(ref, indices) and isinstance(ref, Var) and ref in full


@dataclass(frozen=True)
class LoopInvariant(TaskPass):
    """Moves invariant equations out of `for` and `while`."""

    name: ClassVar[str] = "loop_invariant"
    differentiable: bool = False
    """True if the program is to be differentiated."""

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.loops for e in walk_eqns(task.body)):
            return task
        _, accesses = summarise(task.body)
        mover = _Mover(accesses, FullBefore(program, task), TaskRanges(task), differentiable=self.differentiable)
        return task.rebuilt(mover.rebuild_block(task.body))


@dataclass(slots=True)
class _Loop:
    """A loop around the current place."""

    before: list[Eqn]
    """Equations in front of the loop."""
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
    def __init__(
        self, accesses: dict[Eqn, ModRef], full: Container[Var], ranges: Ranges, *, differentiable: bool
    ) -> None:
        super().__init__()
        self.differentiable = differentiable
        self.accesses = accesses
        self.full = full
        self.ranges = ranges
        self.loops: list[_Loop] = []
        self.depth: dict[Var, int] = {}
        """Number of loops around each value; 0 for a value without an entry."""

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or moves it in front of a loop."""
        if eqn.blocks or not self.loops:
            super().visit(eqn)
            return
        effects = eqn.primitive.effects
        if not effects:
            level = self._level(eqn.invars)
            if self.differentiable and level < len(self.loops) and not has_finite_slopes(eqn):
                level = self._sure_level(level)
        elif eqn.primitive is LOAD:
            level = self._load_level(eqn)
        elif Effect.CHECK in effects:
            level = self._check_level(eqn)
            if level:
                loop = self.loops[level - 1]
                loop.checks, loop.conditions = True, loop.conditions or eqn.primitive is CHECK
        else:
            level = len(self.loops)
        if level == len(self.loops):
            super().visit(eqn)
            return
        self.loops[level].before.append(eqn)
        self._note(eqn.outvars, level)

    def bind(self, variables: tuple[Var, ...]) -> tuple[Var, ...]:
        """Records the depth of variables and returns them."""
        if self.loops:
            self._note(variables, len(self.loops))
        return variables

    def _note(self, variables: tuple[Var, ...], depth: int) -> None:
        for var in variables:
            self.depth[var] = depth

    def _level(self, atoms: tuple[Atom, ...]) -> int:
        depth = self.depth
        return max([depth.get(a, 0) for a in atoms if a.__class__ is Var], default=0)  # type: ignore[call-overload]

    def _sure_level(self, lowest: int) -> int:
        """Returns the lowest level, from `lowest` on, from which the current place is surely reached."""
        level = len(self.loops)
        while level > lowest and self.loops[level - 1].surely_runs and not self.loops[level - 1].ifs:
            level -= 1
        return level

    def _load_level(self, eqn: Eqn) -> int:
        lowest = self._level(eqn.invars)
        ref, *indices = eqn.invars
        level = len(self.loops)
        while level > lowest:
            loop = self.loops[level - 1]
            if ref in loop.written:
                break
            surely = loop.surely_runs and not loop.ifs and (not loop.checks or self.ranges.are_inside(ref, indices))
            if not surely and not load_cannot_fail(eqn, self.full, self.ranges):
                break
            level -= 1
        return level

    def _check_level(self, eqn: Eqn) -> int:
        """Returns the lowest level that a check may move to: it must surely run from there, so that code that is not
        executed raises nothing, and it must not pass a condition of the user."""
        lowest = self._level(eqn.invars)
        level = len(self.loops)
        while level > lowest:
            loop = self.loops[level - 1]
            if not loop.surely_runs or loop.ifs or loop.conditions:
                break
            level -= 1
        return level

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns the equation rebuilt; equations that move out of a loop have been appended before it."""
        if not eqn.primitive.loops:
            return super().rebuild_eqn(eqn)
        self.ranges.enter(eqn)
        self.loops.append(_Loop(self.current.eqns, self.accesses[eqn].writes))
        rebuilt = super().rebuild_eqn(eqn)
        self.loops.pop()
        self._note(eqn.outvars, len(self.loops))
        return rebuilt

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds a block of a branch or loop."""
        if not self.loops:
            return super().region(eqn, number)
        loop = self.loops[-1]
        is_if = eqn.primitive is IF
        if not is_if:
            # The condition of a `while` is evaluated at least once.
            loop.surely_runs = number == 0 and surely_runs(eqn)
        loop.ifs += is_if
        rebuilt = super().region(eqn, number)
        loop.ifs -= is_if
        return rebuilt
