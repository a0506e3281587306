"""Proves that a task reads each element of one reference before it writes that element of another one.

If so, both may be one piece of memory: `y[i] = 2 * x[i]` is right in place, `y[i] = x[i] + x[i + 1]` is not. For a load
and a store that may touch one element the proof requires that

- only one iteration of the task does both: they share a proof (`analysis/index/injectivity`), or the distance between
  their iterations is zero (`analysis/index/dependence`);
- only one iteration of each loop around both does both: some axis has the same index in both, which has another value
  each time around;
- in that iteration the load comes first. This compares locations (`analysis/alias`) over the structured blocks; the two
  sides of a branch do not follow each other.

The value of a load of the written reference does not matter: the same iteration stored the element, or it is unset.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from qdtrace.analysis.accesses import READ, WRITE, TaskAccesses
from qdtrace.analysis.alias import Alias, AliasAnalysis, MemoryLocation, is_comparable, levels_of, locations_in
from qdtrace.analysis.index.dependence import IterationSpace, dependence_between
from qdtrace.ir.primitives import FOR, IF, LOAD, STORE
from qdtrace.ir.program import Block, Eqn, Task, Var, ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.analysis.accesses import Access
    from qdtrace.ir.primitives import Primitive

_LIMIT = 32
"""Largest number of loads, and of stores, that are compared pair by pair; above it nothing is proven."""


def reads_come_first(task: Task, source: Var, target: Var) -> bool:
    """Returns whether each element of `source` is read before that element of `target`, of one type, is written."""
    accesses = TaskAccesses(task)
    loads, others = accesses.by_ref.get(source, []), accesses.by_ref.get(target, [])
    stores = [a for a in others if a.writes]
    if not is_comparable(source) or not accesses.head_reads.isdisjoint((source, target)):
        return False
    if any(a.mode != READ for a in loads) or any(a.mode != WRITE for a in stores):
        return False
    if max(len(loads), len(stores)) > _LIMIT:
        return False
    if task.index is not None:
        space = IterationSpace(task.index, accesses.iterations, {v for eqn in task.head for v in eqn.outvars})
        if not all(_in_one_iteration(a, b, accesses, space) for a, b in product(loads, stores)):
            return False
    return _Order(task, source, target, accesses).holds(task.body, [], 1) is not None


def _in_one_iteration(load: Access, store: Access, accesses: TaskAccesses, space: IterationSpace) -> bool:
    if load.keys & store.keys:
        return True
    forms = accesses.forms
    return dependence_between(ref_type(load.ref), load.forms, store.forms, (forms, forms), space).is_safe


class _Order:
    """Walk over one iteration that follows which elements of `target` may be stored already."""

    def __init__(self, task: Task, source: Var, target: Var, accesses: TaskAccesses) -> None:
        self.source = source
        self.target = target
        self.aliases = AliasAnalysis(accesses.forms)
        self.levels = levels_of(task)

    def holds(self, block: Block, stored: list[MemoryLocation], level: int) -> list[MemoryLocation] | None:
        """Returns what may be stored after a block that begins with `stored`; None if a load may follow its store."""
        for eqn in block.eqns:
            if eqn.blocks:
                found = self._inner(eqn, stored, level)
                if found is None:
                    return None
                stored = found
            elif eqn.primitive is LOAD and eqn.invars[0] is self.source:
                location = self.aliases.of(eqn)
                if len(stored) > _LIMIT or any(self._may_alias(location, other) for other in stored):
                    return None
            elif eqn.primitive is STORE and eqn.invars[0] is self.target:
                location = self.aliases.of(eqn)
                if all((location.terms, location.constants) != (other.terms, other.constants) for other in stored):
                    stored = [*stored, location]
        return stored

    def _may_alias(self, a: MemoryLocation, b: MemoryLocation) -> bool:
        return self.aliases.alias(a, b) is not Alias.NO

    def _inner(self, eqn: Eqn, stored: list[MemoryLocation], level: int) -> list[MemoryLocation] | None:
        if eqn.primitive is not IF and not self._is_apart(eqn, level):
            return None
        after: list[MemoryLocation] = [*stored]
        before = stored
        for block in eqn.blocks:
            made = self.holds(block, before, level + 1)
            if made is None:
                return None
            if eqn.primitive is IF:
                after += made[len(stored) :]
            else:
                after = before = made
        return after

    def _is_apart(self, loop: Eqn, level: int) -> bool:
        """Returns whether no store of one iteration of the loop touches an element that a later iteration loads."""
        loads = self._locations(loop, LOAD, self.source)
        stores = self._locations(loop, STORE, self.target)
        if not loads or not stores:
            return True
        if loop.primitive is not FOR or loop.index.dtype is not DType.i32:
            return False
        index = loop.index
        return all(self._tells_apart(index, a, b, level) for a, b in product(loads, stores))

    def _locations(self, loop: Eqn, prim: Primitive, ref: Var) -> list[MemoryLocation]:
        """Returns the locations that `prim` touches of `ref` in the loop, equal ones once."""
        found = locations_in(self.aliases, loop, lambda p: p is prim).get(ref, [])
        return list({(location.terms, location.constants): location for location in found}.values())

    def _tells_apart(self, index: Var, a: MemoryLocation, b: MemoryLocation, level: int) -> bool:
        """Returns whether some axis has one index in both: `index`, or its negative, plus an invariant of the loop."""
        for terms, others, constant, other in zip(a.terms, b.terms, a.constants, b.constants, strict=True):
            if terms == others and constant == other and dict(terms).get(index) in (1, -1):
                axis = MemoryLocation(a.ref, (terms - {(index, 1), (index, -1)},), (0,), ())
                if all(var is not index and self.levels.get(var, 0) <= level for var in axis.variables()):
                    return True
        return False
