"""Uniformity analysis: values that are the same in all lanes of a vector, and branches and loops that diverge.

A lane is one iteration of a task. The task index varies; so does what is computed from it, what is read at a varying
index or from private memory, and what a branch or loop decided by a varying value hands out. Inside a loop that lanes
leave at different times the carries may still be uniform *among the lanes that are still in it* (a counter), while
the result after the loop varies.
"""

from __future__ import annotations

from dataclasses import dataclass

from qdtrace.ir.carries import carries_of
from qdtrace.ir.primitives import ATOMIC, CELL, FOR, LANE_MAX, LOAD, WHILE
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Task, Var, is_local


@dataclass(frozen=True, slots=True)
class Uniformity:
    """The varying values and the divergent equations of one task."""

    varying: frozenset[Var]
    """Scalars that may differ between lanes at the place where they are bound."""
    divergent: frozenset[Eqn]
    """`if`, `for` and `while` equations whose control flow may differ between lanes."""

    def is_uniform(self, atom: Atom) -> bool:
        """Returns whether all active lanes hold the same value."""
        return isinstance(atom, Literal) or atom not in self.varying


def analyse_uniformity(
    task: Task, uniform: frozenset[Var] = frozenset(), varying: frozenset[Var] = frozenset()
) -> Uniformity:
    """Returns the uniformity of a task; nothing varies in a serial task, which has one lane.

    `uniform` and `varying` are variables that are so because of the way the task is run.
    """
    if task.kind == "serial" or task.index is None:
        return Uniformity(frozenset(), frozenset())
    search = _Search(uniform)
    search.varying |= {task.index, *varying}
    while search.changed:
        search.changed = False
        search.block(task.body)
    return Uniformity(frozenset(search.varying), frozenset(search.divergent))


class _Search:
    """Grows the set of varying values until nothing changes (only loops need a second round)."""

    def __init__(self, uniform: frozenset[Var]) -> None:
        self.uniform = uniform
        self.varying: set[Var] = set()
        self.divergent: set[Eqn] = set()
        self.changed = True

    def mark(self, *variables: Var) -> None:
        for var in variables:
            if var not in self.varying and var not in self.uniform:
                self.varying.add(var)
                self.changed = True

    def diverge(self, eqn: Eqn) -> None:
        if eqn not in self.divergent:
            self.divergent.add(eqn)
            self.changed = True

    def block(self, block: Block) -> None:
        varying = self.varying
        for eqn in block.eqns:
            if eqn.primitive.structured:
                self._structured(eqn)
            elif eqn.outvars:
                prim = eqn.primitive
                if prim in (CELL, LANE_MAX):
                    continue
                own = prim is ATOMIC or (prim is LOAD and is_local(eqn.invars[0]))
                if own or not varying.isdisjoint(eqn.invars):
                    self.mark(eqn.outvars[0])

    def _structured(self, eqn: Eqn) -> None:
        carries = carries_of(eqn)
        for carry in carries:
            if carry.initial in self.varying:
                self.mark(*carry.params)
        if eqn.primitive is FOR and not self.varying.isdisjoint((eqn.bounds[0], eqn.step)):
            self.mark(eqn.index)
        for block in eqn.blocks:
            self.block(block)
        decides = eqn.blocks[0].results if eqn.primitive is WHILE else eqn.control
        if not self.varying.isdisjoint(decides):
            self.diverge(eqn)
        for carry in carries:
            if not self.varying.isdisjoint(carry.results):
                self.mark(carry.outvar, *carry.params)
            elif eqn in self.divergent or not self.varying.isdisjoint(carry.params):
                self.mark(carry.outvar)
