"""Uniformity analysis: values that are the same in all lanes of a vector, and branches and loops that diverge.

A lane is one iteration of a task. The task index varies; so does what is computed from it, what is read at a varying
index or from private memory, and what a branch or loop decided by a varying value hands out. Inside a loop that lanes
leave at different times the carries may still be uniform *among the lanes that are still in it* (a counter), while
the result after the loop varies.
"""

from __future__ import annotations

from collections import defaultdict

from qdtrace.frozen import frozen
from qdtrace.ir.dataflow import flows, reached
from qdtrace.ir.primitives import ATOMIC, CELL, FOR, LANE_COUNT, LANE_MAX, LANE_RANK, LOAD, WHILE
from qdtrace.ir.program import Atom, Eqn, Literal, Task, Var, is_local
from qdtrace.ir.walk import walk_eqns


@frozen(slots=True)
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
    after: defaultdict[Atom | Eqn, list[Var | Eqn]] = defaultdict(list)
    roots: list[Var | Eqn] = [task.index, *varying]
    for eqn in walk_eqns(task.body):
        prim = eqn.primitive
        if eqn.blocks:
            after[eqn] += eqn.outvars
            for atom in eqn.blocks[0].results if prim is WHILE else eqn.control:
                after[atom].append(eqn)
            for atom in (eqn.bounds[0], eqn.step) if prim is FOR else ():
                after[atom].append(eqn.index)
            for source, target in flows(eqn):
                after[source].append(target)
        elif prim in (ATOMIC, LANE_RANK) or (prim is LOAD and is_local(eqn.invars[0])):
            roots += eqn.outvars
        elif eqn.outvars and prim not in (CELL, LANE_COUNT, LANE_MAX):
            for atom in eqn.invars:
                if atom.__class__ is Var:  # literals are slow to hash
                    after[atom] += eqn.outvars
    found = reached(roots, after.__getitem__, without=uniform)
    divergent = frozenset([each for each in found if isinstance(each, Eqn)])
    return Uniformity(frozenset([each for each in found if isinstance(each, Var)]), divergent)
