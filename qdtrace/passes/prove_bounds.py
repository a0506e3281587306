"""Bounds check elimination: removes checks of indices that are surely in range, and comparisons that ranges decide.

Before:  range_for i in 0:i32 : 8:i32              After:  range_for i in 0:i32 : 8:i32
           p: bool = gt i 0:i32                              p: bool = gt i 0:i32
           if p                                              if p
             j: i32 = sub i 1:i32                              j: i32 = sub i 1:i32
             k: i32 = bound[size=8] j                          a: f32 = load x j
             a: f32 = load x k                                 store y a i
             store y a i

The proof is by ranges (`analysis/index/flow_ranges`): of the task's index, of loops, through branches and tests around
the place. A check that is kept is a fact itself: after it the index is in range, for every buffer as long. If such a
fact is the proof, the access does not depend on the check, so passes that execute a load earlier do not move it across
a check unless its index is in range anywhere.
Comparisons that ranges decide become constants, and `min` and `max` one of their operands: that is what is left of the
clamping in indexed JAX arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.flow_ranges import FlowRanges
from qdtrace.analysis.index.intervals import compared
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import BOUND, CHECK, IF, MAX, MIN, WHILE
from qdtrace.ir.program import literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from qdtrace.analysis.index.flow_ranges import Facts
    from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var


@frozen
class ProveBounds(TaskPass):
    """Removes checks of indices that ranges prove."""

    name: ClassVar[str] = "prove_bounds"

    def on_task(self, task: Task, program: Program) -> Task:
        return Prover(task).rebuild_task(task) if any(map(_may_go, task.all_eqns)) else task


def _may_go(eqn: Eqn) -> bool:
    """Returns whether an equation is a check of an index, or a clamp of an integer."""
    prim = eqn.primitive
    return prim is BOUND or (prim in (MIN, MAX) and eqn.invars[0].dtype.is_integer)


class Prover(Rebuilder):
    """Rebuilds one task with the ranges that hold at the current place."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.ranges = FlowRanges(task)
        self.checked: dict[Atom, tuple[int, Var]] = {}
        """Indices that are checked before the current place: the shortest length, and the result of that check."""

    def rebuild_block(self, block: Block) -> Block:
        """Rebuilds a block; its checks prove nothing after it."""
        checked, self.checked = self.checked, dict(self.checked)
        rebuilt = super().rebuild_block(block)
        self.checked = checked
        return rebuilt

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds the block of a branch or loop with the ranges that hold at its start."""
        with self.ranges.scope(self._facts(eqn, number)):
            return super().region(eqn, number)

    def _facts(self, eqn: Eqn, number: int) -> Facts:
        ranges, prim = self.ranges, eqn.primitive
        if prim is IF:
            return ranges.facts_of(eqn.invars[0], number == 0)
        if prim is WHILE and number == 0:
            return ranges.tested(eqn)
        return ranges.entry(eqn, ranges.carried(eqn))

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation unless it is decided; after a check its condition is a fact."""
        prim = eqn.primitive
        if prim is BOUND:
            self._bound(eqn)
        elif (known := self._decided(eqn)) is not None:
            self.env[eqn.outvars[0]] = known
        else:
            super().visit(eqn)
            if prim is CHECK:
                self.ranges.note(self.ranges.facts_of(eqn.invars[0], True))

    def _bound(self, eqn: Eqn) -> None:
        index, size = eqn.invars[0], int(eqn.params["size"])
        least, made = self.checked.get(index, (size + 1, None))
        if made is not None and least <= size:
            self.env[eqn.outvars[0]] = made
            return
        low, high = self.ranges.of(index)
        if low >= 0 and high < size:
            self.env[eqn.outvars[0]] = self.atom(index)
            return
        super().visit(eqn)
        self.checked[index] = size, eqn.outvars[0]
        self.ranges.note(self.ranges.facts_inside(index, size))

    def _decided(self, eqn: Eqn) -> Atom | None:
        """Returns the result of a comparison, `min` or `max` of integers if the ranges decide it, else None."""
        prim = eqn.primitive
        is_extreme = prim in (MIN, MAX)
        if not (prim.negation or is_extreme) or not eqn.invars[0].dtype.is_integer:
            return None
        a, b = map(self.ranges.of, eqn.invars)
        if is_extreme:
            first = a[1] <= b[0] if prim is MIN else a[0] >= b[1]
            second = b[1] <= a[0] if prim is MIN else b[0] >= a[1]
            chosen = eqn.invars[0] if first else eqn.invars[1] if second else None
            return None if chosen is None else self.atom(chosen)
        truth = compared(prim.name, a, b)
        return None if truth is None else literal(truth, DType.bool)
