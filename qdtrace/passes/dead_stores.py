"""Dead store elimination: removes stores that are surely overwritten, or whose memory ends, before any read.

Before:  store b 0.0:f32 i                After:  if p
         if p                                       store b v i
           store b v i                            else
         else                                       store b w i
           store b w i

A backward data-flow over the structured blocks, with locations of `analysis/memory`. The rules:

- `overwritten`: on every path from the store the iteration stores the location again before it reads it. A store
  before an `if` is dead if both sides store; one before a loop only if the loop surely runs.
- `gone`: on no path the location is read. Private memory is gone at the end of its block. A buffer is gone at the end
  of the task if it is no result, no later task reads it and no other iteration of this one can. In a loop whose
  iterations touch elements of their own, what they store is gone if the code after the loop does not read it.

Accumulations are removed by the same rules if no other iteration touches the element. A store is kept if other
iterations may accumulate into its element or update it atomically.

With `per_task` a buffer is live after a task if any later task reads it; else liveness is followed through all tasks:
a task that stores all of a buffer, and reads nothing of it, makes the content before it dead.

Never removes an atomic. Never moves anything. Linear in the size of the task times its depth.
"""

from __future__ import annotations

from dataclasses import field
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import filled_by
from qdtrace.analysis.index.trips import surely_runs
from qdtrace.analysis.location_table import LIMIT, SCAN, LocationTable
from qdtrace.analysis.memory import MemoryLocation, TaskMemory
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.dataflow import Flow
from qdtrace.ir.memory import read, touched, written
from qdtrace.ir.primitives import ACCUM, CELL, FOR, IF, STORE, WHILE
from qdtrace.ir.program import Eqn, Program, Task, Var, is_local
from qdtrace.ir.walk import walk_eqns, walk_inside
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence


@frozen
class DeadStores(Pass):
    """Removes stores that nothing reads."""

    name: ClassVar[str] = "dead_stores"
    per_task: bool = True

    def __call__(self, program: Program) -> Program:
        """Returns the program without dead stores."""
        return without_dead_stores(program, per_task=self.per_task)


@mutable(slots=True)
class Borders:
    """References that are live before and after a task, and the dead stores that were removed from it."""

    live_in: set[Var]
    live_out: set[Var]
    dropped: list[Eqn] = field(default_factory=lambda: [])


def without_dead_stores(
    program: Program, *, per_task: bool, note: Callable[[Task, Borders], None] | None = None
) -> Program:
    """Returns the program without dead stores; calls `note` with the borders of each task, last task first."""
    live = set(program.results)
    tasks: list[Task] = []
    for task in reversed(program.tasks):
        after = set(live) if note is not None else live
        swept, dropped = _swept(task, live)
        reads = set(read(swept.all_eqns))
        if not per_task:
            live -= filled_by(swept) - reads
        live |= {ref for ref in reads if not is_local(ref)}
        if note is not None:
            note(task, Borders(set(live), after, dropped))
        tasks.append(swept)
    return program.rebuilt(tasks[::-1])


def _swept(task: Task, live: Collection[Var]) -> tuple[Task, list[Eqn]]:
    changed = set(written(walk_eqns(task.body)))
    if not changed:
        return task, []
    memory = TaskMemory(task)
    reads = set(read(task.all_eqns))
    gone = {
        ref for ref in memory.tracked & changed
        if ref not in live and not is_local(ref) and (ref not in reads or memory.is_private(ref))
    }  # fmt: skip
    # Nothing to find where nothing is touched twice.
    if not gone and all(len(memory.accesses[ref]) < 2 for ref in changed & memory.tracked):
        return task, []
    sweeper = _Sweeper(memory)
    sweeper.facts.update({ref: _Future(gone=True) for ref in gone})
    return task.rebuilt(sweeper.rebuild_block(task.body)), sweeper.dropped


class _Future:
    """Backward dataflow fact: which elements of one reference may be read later."""

    def __init__(self, *, gone: bool) -> None:
        self.gone = gone
        """True if only the listed locations may be read; False if only those are overwritten before any read."""
        self.listed: LocationTable[None] = LocationTable()

    def copy(self) -> _Future:
        made = _Future(gone=self.gone)
        made.listed = self.listed.copy()
        return made

    def is_dead(self, location: MemoryLocation, memory: TaskMemory) -> bool:
        return not self.listed.meeting(location, memory) if self.gone else location in self.listed

    def read(self, location: MemoryLocation, memory: TaskMemory) -> None:
        if not self.gone:
            self.listed.forget(location, memory)
        elif self.listed.count < LIMIT:
            self.listed.put(location, None)
        else:
            self.give_up()

    def write(self, location: MemoryLocation) -> None:
        if self.gone:
            self.listed.remove(location)
        else:
            self.listed.put(location, None)

    def give_up(self) -> None:
        """Assumes that every element may be read."""
        self.gone = False
        self.listed = LocationTable()

    def either(self, other: _Future, memory: TaskMemory) -> _Future:
        """Returns the meet of two facts: what holds whichever of the two futures comes."""
        if self.gone and other.gone:
            made = self.copy()
            for location, _ in other.listed:
                made.read(location, memory)
            return made
        if self.gone:
            return other.either(self, memory)
        made = _Future(gone=False)
        for location, _ in self.listed:
            if other.is_dead(location, memory):
                made.listed.put(location, None)
        return made


class _Sweeper(Flow[Var, _Future]):
    """Rebuilds a task from its end to its start without dead stores.

    Every element of a reference without a fact may be read.
    """

    backward = True

    def __init__(self, memory: TaskMemory) -> None:
        super().__init__()
        self.memory = memory
        self.dropped: list[Eqn] = []

    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Returns the equations that are kept, visited from the last to the first."""
        for eqn in eqns:
            if eqn.primitive is CELL:
                self.facts[eqn.outvars[0]] = _Future(gone=True)
        return super().rebuild_eqns(eqns)

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation unless it is a dead store."""
        is_access = eqn.primitive.values is not None and eqn.invars[0] in self.memory.tracked
        if is_access and not self._stays(eqn):
            self.dropped.append(eqn)
        else:
            super().visit(eqn)

    def _stays(self, eqn: Eqn) -> bool:
        location = self.memory.of(eqn)
        future = self.facts.get(location.ref)
        if future is None:
            future = self.facts[location.ref] = _Future(gone=False)
        prim = eqn.primitive
        if prim in (STORE, ACCUM) and future.is_dead(location, self.memory):
            return False
        if prim is STORE:
            future.write(location)
        else:
            future.read(location, self.memory)
        return True

    # Regions.

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns an equation that is kept with its blocks rebuilt, the last block first."""
        if not eqn.blocks:
            return eqn
        refs = list(self.memory.tracked.intersection(touched(walk_inside(eqn))))
        return self._if(eqn, refs) if eqn.primitive is IF else self._loop(eqn, refs)

    def copied(self, fact: _Future) -> _Future:
        """Returns an independent fact with the same content."""
        return fact.copy()

    def taken(self, keys: Iterable[Var]) -> dict[Var, _Future]:
        """Removes the facts about these references and returns them."""
        return {ref: self.facts.pop(ref, None) or _Future(gone=False) for ref in keys}

    def _if(self, eqn: Eqn, refs: list[Var]) -> Eqn:
        blocks, before = self.sides(eqn, refs, repeat(self.taken(refs)))
        self.facts.update({ref: before[0][ref].either(before[1][ref], self.memory) for ref in refs})
        return eqn.rebuilt(blocks=blocks)

    def _loop(self, eqn: Eqn, refs: list[Var]) -> Eqn:
        after = self.taken(refs)
        reads = self.memory.inside(eqn, lambda p: p.reads)
        for ref in refs:
            apart = after[ref].gone and ref in reads and eqn.primitive is FOR and self.memory.is_apart(ref, eqn)
            self.facts[ref] = after[ref].copy() if apart else self._around(after[ref], reads.get(ref, []))
        blocks = (self.region(eqn, len(eqn.blocks) - 1),)
        entered = self._outside(self.taken(refs))
        surely = eqn.primitive is FOR and surely_runs(eqn)
        if not surely:
            entered = {ref: future.either(after[ref], self.memory) for ref, future in entered.items()}
        self.facts.update(entered)
        if eqn.primitive is WHILE:
            blocks = (self.region(eqn, 0), *blocks)
            self.facts.update(self._outside(self.taken(refs)))
        return eqn.rebuilt(blocks=blocks)

    def _around(self, after: _Future, reads: list[MemoryLocation]) -> _Future:
        """Returns the fact at the end of a loop's body: more iterations may follow, then the code after the loop."""
        made = after.copy()
        varies = made.gone and any(self._is_inside(location) for location in reads)
        if varies or len(reads) > SCAN:
            made.give_up()
        else:
            for location in reads:
                made.read(location, self.memory)
        return made

    def _outside(self, futures: dict[Var, _Future]) -> dict[Var, _Future]:
        """Returns the facts without locations that depend on variables of the loop."""
        for future in futures.values():
            inside = [p for p, _ in future.listed if self._is_inside(p)]
            if inside and future.gone:
                future.give_up()
            for location in inside:
                future.listed.remove(location)
        return futures

    def _is_inside(self, location: MemoryLocation) -> bool:
        return any(self.memory.levels.get(var, 0) > self.level for var in location.variables())
