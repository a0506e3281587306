"""Dead stores: what is surely overwritten, or gone, before anything may read it.

Before:  store b 0.0:f32 i                After:  if p
         if p                                       store b v i
           store b v i                            else
         else                                       store b w i
           store b w i

A backward data-flow over the structured blocks, with places of `analysis/places`. The rules:

- `overwritten`: on every way from the store the iteration stores the place again, and reads it before on none. A store
  before an `if` is dead when both sides store; one before a loop only when the loop surely runs.
- `gone`: on no way the place is read. Private memory is gone at the end of its block. A buffer is gone at the end of
  the task when it is no result, no later task reads it and no other iteration of this one can.

Accumulations go by the same rules, where no other iteration touches the element. A store stays when what it touches
other iterations may accumulate into or update atomically.

With `per_task` a buffer is needed after a task when any later task reads it; else the way through all tasks is
followed: a task that stores all of a buffer, and reads nothing of it, makes what was there before dead.

Never removes an atomic. Never moves anything. Linear in the size of the task times its depth.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.affine import AffineForms
from qdtrace.analysis.effects import PURE, Access, access_of
from qdtrace.analysis.place_table import LIMIT, SCAN, PlaceTable
from qdtrace.analysis.places import Place, Places, References, levels_of, places_in
from qdtrace.analysis.stored import filled_by
from qdtrace.analysis.work import trip_count
from qdtrace.ir.memory import READERS
from qdtrace.ir.primitives import Effect
from qdtrace.ir.program import Block, Eqn, Program, Task, Var, is_local
from qdtrace.ir.walk import walk_task
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

_LOOKS = frozenset({Effect.READ, Effect.ACCUM})


@dataclass(frozen=True)
class DeadStores(Pass):
    """Removes stores that nothing reads."""

    name: ClassVar[str] = "dead_stores"
    per_task: bool = True

    def __call__(self, program: Program) -> Program:
        """The program without dead stores."""
        return without_dead_stores(program, per_task=self.per_task)


@dataclass(slots=True)
class Borders:
    """References that matter before and after a task, and the stores that did not."""

    live_in: set[Var]
    live_out: set[Var]
    dropped: list[Eqn] = field(default_factory=lambda: [])


def without_dead_stores(
    program: Program, *, per_task: bool, note: Callable[[Task, Borders], None] | None = None
) -> Program:
    """The program without dead stores; `note` is told the borders of each task, from the last to the first."""
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
    tasks.reverse()
    if all(a is b for a, b in zip(tasks, program.tasks, strict=True)):
        return program
    return replace(program, tasks=tuple(tasks))


def reads_of(task: Task) -> set[Var]:
    """References whose content the task looks at: what it loads, accumulates into or updates atomically."""
    return {e.invars[0] for e in walk_task(task) if not _LOOKS.isdisjoint(e.primitive.effects)}  # type: ignore[misc]


def _swept(task: Task, live: Collection[Var]) -> tuple[Task, list[Eqn]]:
    access: dict[Eqn, Access] = {}
    touched = access_of(task.body.eqns, access)
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
    sweeper = _Sweeper(Places(forms), references, access, levels_of(task))
    sweeper.futures.update({ref: _Future(gone=True) for ref in gone})
    body = sweeper.block(task.body, 1)
    return (task if body is task.body else replace(task, body=body)), sweeper.dropped


class _Future:
    """What happens later to the elements of one reference."""

    def __init__(self, *, gone: bool) -> None:
        self.gone = gone
        """True: nothing reads an element, but for those listed. False: those listed are overwritten before any read."""
        self.listed: PlaceTable[None] = PlaceTable()

    def copy(self) -> _Future:
        made = _Future(gone=self.gone)
        made.listed = self.listed.copy()
        return made

    def is_dead(self, place: Place, places: Places) -> bool:
        return not self.listed.meeting(place, places) if self.gone else place in self.listed

    def read(self, place: Place, places: Places) -> None:
        if not self.gone:
            self.listed.forget(place, places)
        elif self.listed.count < LIMIT:
            self.listed.put(place, None)
        else:
            self.give_up()

    def write(self, place: Place) -> None:
        if self.gone:
            self.listed.remove(place)
        else:
            self.listed.put(place, None)

    def give_up(self) -> None:
        """Everything may be read."""
        self.gone = False
        self.listed = PlaceTable()

    def either(self, other: _Future, places: Places) -> _Future:
        """What holds whichever of the two comes."""
        if self.gone and other.gone:
            made = self.copy()
            for place, _ in other.listed:
                made.read(place, places)
            return made
        if self.gone:
            return other.either(self, places)
        made = _Future(gone=False)
        for place, _ in self.listed:
            if other.is_dead(place, places):
                made.listed.put(place, None)
        return made


class _Sweeper:
    """Walks a task from its end to its start."""

    def __init__(
        self, places: Places, references: References, access: dict[Eqn, Access], levels: dict[Var, int]
    ) -> None:
        self.places = places
        self.references = references
        self.access = access
        self.levels = levels
        self.futures: dict[Var, _Future] = {}
        """A reference without an entry may be read completely."""
        self.dropped: list[Eqn] = []

    def block(self, block: Block, level: int) -> Block:
        for eqn in block.eqns:
            if eqn.primitive.name == "cell":
                self.futures[eqn.outvars[0]] = _Future(gone=True)
        out: list[Eqn] = []
        for eqn in reversed(block.eqns):
            if eqn.blocks:
                out.append(self._if(eqn, level) if eqn.primitive.name == "if" else self._loop(eqn, level))
            elif eqn.primitive.effects and eqn.invars and eqn.invars[0] in self.references.tracked:
                if self._stays(eqn):
                    out.append(eqn)
                else:
                    self.dropped.append(eqn)
            else:
                out.append(eqn)
        out.reverse()
        if len(out) == len(block.eqns) and all(a is b for a, b in zip(out, block.eqns, strict=True)):
            return block
        return Block(block.params, tuple(out), block.results)

    def _stays(self, eqn: Eqn) -> bool:
        place = self.places.of(eqn)
        future = self.futures.get(place.ref)
        if future is None:
            future = self.futures[place.ref] = _Future(gone=False)
        name = eqn.primitive.name
        if name in ("store", "accum") and future.is_dead(place, self.places):
            return False
        if name == "store":
            future.write(place)
        else:
            future.read(place, self.places)
        return True

    # Regions.

    def _touched(self, eqn: Eqn) -> list[Var]:
        access = self.access.get(eqn, PURE)
        return list(self.references.tracked & (access.reads | access.writes))

    def _taken(self, refs: Iterable[Var]) -> dict[Var, _Future]:
        """The futures of the references, which have none then."""
        return {ref: self.futures.pop(ref, None) or _Future(gone=False) for ref in refs}

    def _set(self, futures: dict[Var, _Future]) -> None:
        self.futures.update({ref: future.copy() for ref, future in futures.items()})

    def _if(self, eqn: Eqn, level: int) -> Eqn:
        touched = self._touched(eqn)
        after = self._taken(touched)
        blocks: list[Block] = []
        before: list[dict[Var, _Future]] = []
        for block in eqn.blocks:
            self._set(after)
            blocks.append(self.block(block, level + 1))
            before.append(self._taken(touched))
        self.futures.update({ref: before[0][ref].either(before[1][ref], self.places) for ref in touched})
        same = all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
        return eqn if same else replace(eqn, blocks=tuple(blocks))

    def _loop(self, eqn: Eqn, level: int) -> Eqn:
        touched = self._touched(eqn)
        after = self._taken(touched)
        reads = places_in(self.places, eqn.blocks, READERS)
        self._set({ref: self._around(after[ref], reads.get(ref, []), level) for ref in touched})
        body = self.block(eqn.blocks[-1], level + 1)
        entered = self._outside(self._taken(touched), level)
        surely = eqn.primitive.name == "for" and bool(trip_count(*eqn.invars[:3]))
        if not surely:
            entered = {ref: future.either(after[ref], self.places) for ref, future in entered.items()}
        self.futures.update(entered)
        blocks = (body,)
        if eqn.primitive.name == "while":
            blocks = (self.block(eqn.blocks[0], level + 1), body)
            self.futures.update(self._outside(self._taken(touched), level))
        same = all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
        return eqn if same else replace(eqn, blocks=blocks)

    def _around(self, after: _Future, reads: list[Place], level: int) -> _Future:
        """What comes after the body of a loop: any number of iterations more, and then what comes after the loop."""
        made = after.copy()
        varies = made.gone and any(self._is_inside(place, level) for place in reads)
        if varies or len(reads) > SCAN:
            made.give_up()
        else:
            for place in reads:
                made.read(place, self.places)
        return made

    def _outside(self, futures: dict[Var, _Future], level: int) -> dict[Var, _Future]:
        """The futures without places that only the loop knows."""
        for future in futures.values():
            inside = [p for p, _ in future.listed if self._is_inside(p, level)]
            if inside and future.gone:
                future.give_up()
            for place in inside:
                future.listed.remove(place)
        return futures

    def _is_inside(self, place: Place, level: int) -> bool:
        return any(self.levels.get(var, 0) > level for var in place.variables())
