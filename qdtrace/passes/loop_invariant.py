"""Loop-invariant motion: what is the same in each iteration is computed once, before the loop.

Before:  for k in 0:i32 : n : 1:i32      After:  a: f32 = mul s s
           a: f32 = mul s s                      for k in 0:i32 : n : 1:i32
           b: f32 = load x k                       b: f32 = load x k
           c: f32 = add a b                        c: f32 = add a b
           accum[op=add] y c i                     accum[op=add] y c i

A pure equation moves out of every loop that its operands do not depend on, also where the loop may not run: nothing
traps, so computing in vain is harmless. A load moves only where no equation of the loop writes the reference, and
only where it would surely be executed (the loop surely runs and no `if` is passed), or cannot fail: its indices have
ranges inside the shape, and every element of what it reads holds a value: a parameter, or a buffer that an earlier task
has stored in full (`analysis/stored`). A check moves only where it would surely be made. A load passes a check that
stays only when its indices are in range anywhere, as the check may be what proved them.

One walk, with the depth of each value at hand. Never moves equations with blocks, atomics or cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.effects import Access, summarise
from qdtrace.analysis.ranges import Ranges
from qdtrace.analysis.stored import FullBefore
from qdtrace.analysis.uses import definitions
from qdtrace.analysis.work import trip_count
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var, literal, ref_type
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Container


def load_cannot_fail(eqn: Eqn, full: Container[Var], ranges: Ranges) -> bool:
    """True for a load of a reference out of `full` at indices in range: it may be executed anywhere."""
    ref = eqn.invars[0]
    return in_range(eqn, ranges) and isinstance(ref, Var) and ref in full


def in_range(eqn: Eqn, ranges: Ranges) -> bool:
    """True for a load at indices in range, wherever it stands."""
    ref, *indices = eqn.invars
    for index, size in zip(indices, ref_type(ref).shape, strict=True):
        low, high = ranges.of(index)
        if low < 0 or high >= size:
            return False
    return True


@dataclass(frozen=True)
class LoopInvariant(TaskPass):
    """Moves what does not change out of `for` and `while`."""

    name: ClassVar[str] = "loop_invariant"

    def on_task(self, task: Task, program: Program) -> Task:
        if not _has_loop(task.body):
            return task
        _, accesses = summarise(task.body)
        body = _Mover(accesses, FullBefore(program, task), ranges_of(task)).block(task.body)
        return task if body is task.body else replace(task, body=body)


def ranges_of(task: Task) -> Ranges:
    """The ranges of the integers of a task; indices of loops inside are added on the way."""
    defined = definitions(task)
    ranges = Ranges(lambda atom: defined.get(atom) if isinstance(atom, Var) else None)
    if task.index is not None:
        ranges.set_index(task.index, task.start, task.stop, literal(1, task.index.dtype))
    return ranges


def _has_loop(block: Block) -> bool:
    return any(e.blocks and (e.primitive.name != "if" or any(map(_has_loop, e.blocks))) for e in block.eqns)


@dataclass(slots=True)
class _Loop:
    """A loop around the current place."""

    before: list[Eqn]
    """Equations in front of the loop."""
    written: frozenset[Var]
    surely_runs: bool
    """The current block of it runs at least once."""
    ifs: int = 0
    """Branches between the loop and the current place (or the next loop inside)."""
    checks: bool = False
    """A check in front of the current place stays in the loop."""
    conditions: bool = False
    """And it is one of the user's."""


@dataclass(slots=True)
class _Mover:
    accesses: dict[Eqn, Access]
    full: Container[Var]
    ranges: Ranges
    loops: list[_Loop] = field(default_factory=list)
    depth: dict[Var, int] = field(default_factory=dict)
    """How many loops are around a value; 0 where absent."""

    def block(self, block: Block) -> Block:
        out: list[Eqn] = []
        eqns = block.eqns
        here = len(self.loops)
        for eqn in eqns:
            if eqn.blocks:
                eqn = self._if(eqn) if eqn.primitive.name == "if" else self._loop(eqn, out)
            elif here:
                effects = eqn.primitive.effects
                if not effects:
                    level = self._level(eqn.invars)
                elif eqn.primitive.name == "load":
                    level = self._load_level(eqn)
                elif Effect.CHECK in effects:
                    level = self._check_level(eqn)
                    if level:
                        loop = self.loops[level - 1]
                        loop.checks, loop.conditions = True, loop.conditions or eqn.primitive.name == "check"
                else:
                    level = here
                if level < here:
                    self.loops[level].before.append(eqn)
                    if level:
                        for var in eqn.outvars:
                            self.depth[var] = level
                    continue
            out.append(eqn)
            if here:
                for var in eqn.outvars:
                    self.depth[var] = here
        if len(out) == len(eqns) and all(a is b for a, b in zip(out, eqns, strict=True)):
            return block
        return Block(block.params, tuple(out), block.results)

    def _level(self, atoms: tuple[Atom, ...]) -> int:
        depth = self.depth
        return max([depth.get(a, 0) for a in atoms if a.__class__ is Var], default=0)  # type: ignore[call-overload]

    def _load_level(self, eqn: Eqn) -> int:
        lowest = self._level(eqn.invars)
        level = len(self.loops)
        while level > lowest:
            loop = self.loops[level - 1]
            if eqn.invars[0] in loop.written:
                break
            surely = loop.surely_runs and not loop.ifs and (not loop.checks or in_range(eqn, self.ranges))
            if not surely and not load_cannot_fail(eqn, self.full, self.ranges):
                break
            level -= 1
        return level

    def _check_level(self, eqn: Eqn) -> int:
        """A check moves where it would surely be made: an error must not come of what is not executed, and what stands
        behind a condition of the user that does not hold is not."""
        lowest = self._level(eqn.invars)
        level = len(self.loops)
        while level > lowest:
            loop = self.loops[level - 1]
            if not loop.surely_runs or loop.ifs or loop.conditions:
                break
            level -= 1
        return level

    def _if(self, eqn: Eqn) -> Eqn:
        if self.loops:
            self.loops[-1].ifs += 1
        blocks = tuple([self.block(b) for b in eqn.blocks])
        if self.loops:
            self.loops[-1].ifs -= 1
        return eqn if all(a is b for a, b in zip(blocks, eqn.blocks, strict=True)) else replace(eqn, blocks=blocks)

    def _loop(self, eqn: Eqn, out: list[Eqn]) -> Eqn:
        is_for = eqn.primitive.name == "for"
        if is_for:
            self.ranges.set_index(eqn.blocks[0].params[0], *eqn.invars[:3])
        loop = _Loop(out, self.accesses[eqn].writes, surely_runs=False)
        self.loops.append(loop)
        blocks: list[Block] = []
        for k, block in enumerate(eqn.blocks):
            # The condition of a `while` is evaluated at least once.
            loop.surely_runs = (trip_count(*eqn.invars[:3]) or 0) > 0 if is_for else k == 0
            for param in block.params:
                self.depth[param] = len(self.loops)
            blocks.append(self.block(block))
        self.loops.pop()
        same = all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
        return eqn if same else replace(eqn, blocks=tuple(blocks))
