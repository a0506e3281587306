"""Dead store elimination: removes stores that are surely overwritten, or whose memory ends, before any read.

Before:  store b 0.0:f32 i                After:  if p
         if p                                       store b v i
           store b v i                            else
         else                                       store b w i
           store b w i

A backward data-flow over the structured blocks, with locations of `analysis/alias`. The rules:

- `overwritten`: on every path from the store the iteration stores the location again before it reads it. A store
  before an `if` is dead if both sides store; one before a loop only if the loop surely runs.
- `gone`: on no path the location is read. Private memory is gone at the end of its block. A buffer is gone at the end
  of the task if it is no result, no later task reads it and no other iteration of this one can.

Accumulations are removed by the same rules if no other iteration touches the element. A store is kept if other
iterations may accumulate into its element or update it atomically.

With `per_task` a buffer is live after a task if any later task reads it; else liveness is followed through all tasks:
a task that stores all of a buffer, and reads nothing of it, makes the content before it dead.

Never removes an atomic. Never moves anything. Linear in the size of the task times its depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.alias import AliasAnalysis, MemoryLocation, References, levels_of, locations_in
from qdtrace.analysis.effects import PURE, ModRef, mod_ref_of
from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.definite_stores import filled_by
from qdtrace.analysis.index.trips import surely_runs
from qdtrace.analysis.location_table import LIMIT, SCAN, LocationTable
from qdtrace.ir.primitives import ACCUM, CELL, FOR, IF, STORE, WHILE, Effect
from qdtrace.ir.program import Block, Eqn, Program, Task, Var, is_local
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_task
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

_LOOKS = frozenset({Effect.READ, Effect.ACCUM})


@dataclass(frozen=True)
class DeadStores(Pass):
    """Removes stores that nothing reads."""

    name: ClassVar[str] = "dead_stores"
    per_task: bool = True

    def __call__(self, program: Program) -> Program:
        """Returns the program without dead stores."""
        return without_dead_stores(program, per_task=self.per_task)


@dataclass(slots=True)
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
        reads = reads_of(swept)
        if not per_task:
            live -= filled_by(swept) - reads
        live |= {ref for ref in reads if not is_local(ref)}
        if note is not None:
            note(task, Borders(set(live), after, dropped))
        tasks.append(swept)
    return program.rebuilt(tasks[::-1])


def reads_of(task: Task) -> set[Var]:
    """Returns the references whose content the task reads: by loads, accumulations or atomics."""
    return {e.invars[0] for e in walk_task(task) if not _LOOKS.isdisjoint(e.primitive.effects)}  # type: ignore[misc]


def _swept(task: Task, live: Collection[Var]) -> tuple[Task, list[Eqn]]:
    access: dict[Eqn, ModRef] = {}
    touched = mod_ref_of(task.body.eqns, access)
    if not touched.writes:
        return task, []
    forms = AffineForms(task, flips=True)
    references = References(task, forms)
    reads = reads_of(task)
    gone = {
        ref for ref in references.tracked & touched.writes
        if ref not in live and not is_local(ref) and (ref not in reads or references.is_private(ref))
    }  # fmt: skip
    # Nothing to find where nothing is touched twice.
    if not gone and all(len(references.accesses[ref]) < 2 for ref in touched.writes & references.tracked):
        return task, []
    sweeper = _Sweeper(AliasAnalysis(forms), references, access, levels_of(task))
    sweeper.futures.update({ref: _Future(gone=True) for ref in gone})
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

    def is_dead(self, location: MemoryLocation, aliases: AliasAnalysis) -> bool:
        return not self.listed.meeting(location, aliases) if self.gone else location in self.listed

    def read(self, location: MemoryLocation, aliases: AliasAnalysis) -> None:
        if not self.gone:
            self.listed.forget(location, aliases)
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

    def either(self, other: _Future, aliases: AliasAnalysis) -> _Future:
        """Returns the meet of two facts: what holds whichever of the two futures comes."""
        if self.gone and other.gone:
            made = self.copy()
            for location, _ in other.listed:
                made.read(location, aliases)
            return made
        if self.gone:
            return other.either(self, aliases)
        made = _Future(gone=False)
        for location, _ in self.listed:
            if other.is_dead(location, aliases):
                made.listed.put(location, None)
        return made


class _Sweeper(Rebuilder):
    """Rebuilds a task from its end to its start without dead stores."""

    def __init__(
        self, aliases: AliasAnalysis, references: References, access: dict[Eqn, ModRef], levels: dict[Var, int]
    ) -> None:
        super().__init__()
        self.aliases = aliases
        self.references = references
        self.access = access
        self.levels = levels
        self.level = 1
        """Number of blocks around the current place."""
        self.futures: dict[Var, _Future] = {}
        """Facts at the current place; every element of a reference without an entry may be read."""
        self.dropped: list[Eqn] = []

    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Returns the equations that are kept, visited from the last to the first."""
        for eqn in eqns:
            if eqn.primitive is CELL:
                self.futures[eqn.outvars[0]] = _Future(gone=True)
        return super().rebuild_eqns(eqns[::-1])[::-1]

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation unless it is a dead store."""
        is_access = eqn.primitive.values is not None and eqn.invars[0] in self.references.tracked
        if is_access and not self._stays(eqn):
            self.dropped.append(eqn)
        else:
            super().visit(eqn)

    def _stays(self, eqn: Eqn) -> bool:
        location = self.aliases.of(eqn)
        future = self.futures.get(location.ref)
        if future is None:
            future = self.futures[location.ref] = _Future(gone=False)
        prim = eqn.primitive
        if prim in (STORE, ACCUM) and future.is_dead(location, self.aliases):
            return False
        if prim is STORE:
            future.write(location)
        else:
            future.read(location, self.aliases)
        return True

    # Regions.

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns an equation that is kept with its blocks rebuilt, the last block first."""
        if not eqn.blocks:
            return eqn
        access = self.access.get(eqn, PURE)
        touched = list(self.references.tracked & (access.reads | access.writes))
        return self._if(eqn, touched) if eqn.primitive is IF else self._loop(eqn, touched)

    def region(self, eqn: Eqn, number: int) -> Block:
        """Rebuilds a block of an equation at the next level."""
        self.level += 1
        rebuilt = super().region(eqn, number)
        self.level -= 1
        return rebuilt

    def _taken(self, refs: Iterable[Var]) -> dict[Var, _Future]:
        """Removes the facts of these references and returns them."""
        return {ref: self.futures.pop(ref, None) or _Future(gone=False) for ref in refs}

    def _if(self, eqn: Eqn, touched: list[Var]) -> Eqn:
        after = self._taken(touched)
        blocks: list[Block] = []
        before: list[dict[Var, _Future]] = []
        for number in range(len(eqn.blocks)):
            self.futures.update({ref: future.copy() for ref, future in after.items()})
            blocks.append(self.region(eqn, number))
            before.append(self._taken(touched))
        self.futures.update({ref: before[0][ref].either(before[1][ref], self.aliases) for ref in touched})
        return eqn.rebuilt(blocks=tuple(blocks))

    def _loop(self, eqn: Eqn, touched: list[Var]) -> Eqn:
        after = self._taken(touched)
        reads = locations_in(self.aliases, eqn, lambda p: p.reads)
        self.futures.update({ref: self._around(after[ref], reads.get(ref, [])) for ref in touched})
        blocks = (self.region(eqn, len(eqn.blocks) - 1),)
        entered = self._outside(self._taken(touched))
        surely = eqn.primitive is FOR and surely_runs(eqn)
        if not surely:
            entered = {ref: future.either(after[ref], self.aliases) for ref, future in entered.items()}
        self.futures.update(entered)
        if eqn.primitive is WHILE:
            blocks = (self.region(eqn, 0), *blocks)
            self.futures.update(self._outside(self._taken(touched)))
        return eqn.rebuilt(blocks=blocks)

    def _around(self, after: _Future, reads: list[MemoryLocation]) -> _Future:
        """Returns the fact at the end of a loop's body: more iterations may follow, then the code after the loop."""
        made = after.copy()
        varies = made.gone and any(self._is_inside(location) for location in reads)
        if varies or len(reads) > SCAN:
            made.give_up()
        else:
            for location in reads:
                made.read(location, self.aliases)
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
        return any(self.levels.get(var, 0) > self.level for var in location.variables())
