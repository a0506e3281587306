"""Proves that a task reads each element of one reference before it writes that element of another one.

If so, both may be one piece of memory: `y[i] = 2 * x[i]` is right in place, `y[i] = x[i] + x[i + 1]` is not. For a load
and a store that may touch one element the proof requires that

- only one iteration of the task does both (`TaskMemory.dependence`);
- only one iteration of each loop around both does both: they share a proof for the loop;
- in that iteration the load comes first. This compares locations (`analysis/memory`) over the structured blocks; two
  sides of a branch do not follow each other.

The value of a load of the written reference does not matter: the same iteration stored the element, or it is unset.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from qdtrace.analysis.memory import MemoryLocation, TaskMemory, is_comparable
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import FOR, IF, LOAD, STORE
from qdtrace.ir.walk import walk_inside

if TYPE_CHECKING:
    from qdtrace.ir.program import Block, Eqn, Task, Var

_LIMIT = 32
"""Largest number of loads, and of stores, that are compared pair by pair; above it nothing is proven."""


def reads_come_first(task: Task, source: Var, target: Var) -> bool:
    """Returns whether each element of `source` is read before that element of `target`, of one type, is written; of
    `source` itself: whether no load reads what the task has stored."""
    memory = TaskMemory(task)
    loads = [e for e in memory.shared.get(source, []) if source is not target or not e.primitive.writes]
    stores = [e for e in memory.shared.get(target, []) if e.primitive.writes]
    if not is_comparable(source) or not memory.head_reads.isdisjoint((source, target)):
        return False
    if any(e.primitive is not LOAD for e in loads) or any(e.primitive is not STORE for e in stores):
        return False
    if max(len(loads), len(stores)) > _LIMIT:
        return False
    if not all(memory.dependence(a, b).is_safe for a, b in product(loads, stores)):
        return False
    return _Order(memory, source, target).holds(task.body, []) is not None


class _Order:
    """Walk over one iteration that follows which elements of `target` may be stored already."""

    def __init__(self, memory: TaskMemory, source: Var, target: Var) -> None:
        self.source = source
        self.target = target
        self.memory = memory

    def holds(self, block: Block, stored: list[MemoryLocation]) -> list[MemoryLocation] | None:
        """Returns what may be stored after a block that begins with `stored`; None if a load may follow its store."""
        for eqn in block.eqns:
            if eqn.blocks:
                found = self._inner(eqn, stored)
                if found is None:
                    return None
                stored = found
            elif eqn.primitive is LOAD and eqn.invars[0] is self.source:
                location = self.memory.of(eqn)
                if len(stored) > _LIMIT or any(self.memory.may_meet(location, p) for p in stored):
                    return None
            elif eqn.primitive is STORE and eqn.invars[0] is self.target:
                location = self.memory.of(eqn)
                if all(location.key != p.key for p in stored):
                    stored = [*stored, location]
        return stored

    def _inner(self, eqn: Eqn, stored: list[MemoryLocation]) -> list[MemoryLocation] | None:
        if eqn.primitive is not IF and not self._is_apart(eqn):
            return None
        after: list[MemoryLocation] = [*stored]
        before = stored
        for block in eqn.blocks:
            made = self.holds(block, before)
            if made is None:
                return None
            if eqn.primitive is IF:
                after += made[len(stored) :]
            else:
                after = before = made
        return after

    def _is_apart(self, loop: Eqn) -> bool:
        """Returns whether no store of one iteration of the loop touches an element that a later iteration loads."""
        inside = [*walk_inside(loop)]
        loads = [e for e in inside if e.primitive is LOAD and e.invars[0] is self.source]
        stores = [e for e in inside if e.primitive is STORE and e.invars[0] is self.target]
        if not loads or not stores:
            return True
        if loop.primitive is not FOR:
            return False
        proofs = [{self.memory.proofs(indices_of(e), loop) for e in eqns} for eqns in (loads, stores)]
        return all(a & b for a, b in product(*proofs))
