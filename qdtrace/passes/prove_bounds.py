"""Proven bounds: checks of indices that are in range anyway go, and what decides nothing goes with them.

Before:  range_for i in 0:i32 : 8:i32              After:  range_for i in 0:i32 : 8:i32
           p: bool = gt i 0:i32                              p: bool = gt i 0:i32
           if p                                              if p
             j: i32 = sub i 1:i32                              j: i32 = sub i 1:i32
             k: i32 = bound[size=8] j                          a: f32 = load x j
             a: f32 = load x k                                 store y a i
             store y a i

The proof is by ranges (`analysis/flow_ranges`): of the task's index, of loops, through branches and tests around the
place. A check that is kept says something itself: behind it the index is in range, for every buffer as long. Where
that is a proof, the access does not depend on the check, so passes that execute a load earlier do not pass a check
with it unless its index is in range anywhere.
Comparisons that ranges decide become constants, and `min` and `max` one of their operands: that is what is left of the
clamping in indexed JAX arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.flow_ranges import FlowRanges
from qdtrace.analysis.ranges import COMPARISONS, compared
from qdtrace.ir.copies import copied_atoms
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var, literal
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_task
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.analysis.flow_ranges import Facts


@dataclass(frozen=True)
class ProveBounds(TaskPass):
    """Drops checks of indices that ranges prove."""

    name: ClassVar[str] = "prove_bounds"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.name == "bound" for e in walk_task(task)):
            return task
        return Prover(task).rewrite(task)


class Prover:
    """Walks one task, with the ranges of the place it is at."""

    def __init__(self, task: Task) -> None:
        self.ranges = FlowRanges(task)
        self.replaced: dict[Var, Atom] = {}
        self.checked: dict[Atom, tuple[int, Var]] = {}
        """Indices that were checked in front of the place: the shortest length, and the result of that check."""

    def rewrite(self, task: Task) -> Task:
        """The task without the checks that ranges prove."""
        head = self._eqns(task.head)
        start, stop = copied_atoms((task.start, task.stop), self.replaced)
        body = self._block(task.body)
        if body is task.body and start is task.start and stop is task.stop and _same(head, task.head):
            return task
        return replace(task, head=head, start=start, stop=stop, body=body)

    def _block(self, block: Block, facts: Facts | None = None) -> Block:
        checked, self.checked = self.checked, dict(self.checked)
        with self.ranges.scope(facts or {}):
            eqns = self._eqns(block.eqns)
            results = copied_atoms(block.results, self.replaced)
        self.checked = checked
        if _same(eqns, block.eqns) and all(a is b for a, b in zip(results, block.results, strict=True)):
            return block
        return Block(block.params, eqns, results)

    def _eqns(self, eqns: tuple[Eqn, ...]) -> tuple[Eqn, ...]:
        """The equations after each other; behind a check its condition is a fact."""
        out: list[Eqn] = []
        for eqn in eqns:
            self.visit(eqn, out)
        return tuple(out)

    def visit(self, eqn: Eqn, out: list[Eqn]) -> None:
        """Appends what an equation becomes."""
        name = eqn.primitive.name
        if eqn.blocks:
            self._structured(eqn, out)
        elif name == "bound":
            self._bound(eqn, out)
        elif (known := self._decided(eqn)) is not None:
            self.replaced[eqn.outvars[0]] = known
        else:
            out.append(self._renamed(eqn))
            if name == "check":
                self.ranges.note(self.ranges.facts_of(eqn.invars[0], True))

    def _bound(self, eqn: Eqn, out: list[Eqn]) -> None:
        index, size = eqn.invars[0], int(eqn.params["size"])
        renamed = self._renamed(eqn)
        least, made = self.checked.get(index, (size + 1, None))
        if made is not None and least <= size:
            self.replaced[eqn.outvars[0]] = made
            return
        low, high = self.ranges.of(index)
        if low >= 0 and high < size:
            self.replaced[eqn.outvars[0]] = renamed.invars[0]
            return
        out.append(renamed)
        self.checked[index] = size, eqn.outvars[0]
        self.ranges.note(self.ranges.facts_inside(index, size))

    def _decided(self, eqn: Eqn) -> Atom | None:
        """What a comparison, `min` or `max` of integers gives, where ranges tell."""
        name = eqn.primitive.name
        if (name not in COMPARISONS and name not in ("min", "max")) or not eqn.invars[0].dtype.is_integer:
            return None
        a, b = map(self.ranges.of, eqn.invars)
        if name in ("min", "max"):
            first = a[1] <= b[0] if name == "min" else a[0] >= b[1]
            second = b[1] <= a[0] if name == "min" else b[0] >= a[1]
            chosen = eqn.invars[0] if first else eqn.invars[1] if second else None
            return None if chosen is None else copied_atoms((chosen,), self.replaced)[0]
        truth = compared(name, a, b)
        return None if truth is None else literal(truth, DType.bool)

    def _renamed(self, eqn: Eqn) -> Eqn:
        invars = copied_atoms(eqn.invars, self.replaced)
        return eqn if all(a is b for a, b in zip(invars, eqn.invars, strict=True)) else replace(eqn, invars=invars)

    def _structured(self, eqn: Eqn, out: list[Eqn]) -> None:
        ranges, renamed = self.ranges, self._renamed(eqn)
        if eqn.primitive.name == "if":
            condition = eqn.invars[0]
            facts = [ranges.facts_of(condition, True), ranges.facts_of(condition, False)]
        else:
            entry = ranges.entry(eqn, ranges.carried(eqn))
            facts = [entry] if eqn.primitive.name == "for" else [ranges.tested(eqn), entry]
        blocks = tuple([self._block(b, f) for b, f in zip(eqn.blocks, facts, strict=True)])
        out.append(renamed if _same(blocks, eqn.blocks) else replace(renamed, blocks=blocks))


def _same(made: Iterable[object], before: Iterable[object]) -> bool:
    made, before = tuple(made), tuple(before)
    return len(made) == len(before) and all(a is b for a, b in zip(made, before, strict=True))
