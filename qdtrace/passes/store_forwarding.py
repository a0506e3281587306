"""Store-to-load forwarding: replaces a load by the value that the iteration stored or loaded there before.

Before:  store b v i                       After:  store b v i
         a: f32 = load b i                         w: f32 = if p
         if p                                        c: f32 = mul v 2.0:f32
           c: f32 = mul a 2.0:f32                    store b c i
           store b c i                               yield c
         d: f32 = load b i                         else
         store y d i                                 yield v
                                                   store y w i

A forward data-flow over the structured blocks. A fact says that a location (`analysis/memory`) holds a value. Rules:

- `forward`: a load of a location with a fact becomes its value; a load or store makes a fact.
- `choose`: if both sides of an `if` leave facts with different values, the `if` returns the value, if it is used.
- `accum_to_store`: an accumulation into a location with a fact becomes an operation and a store, where no other
  iteration can add to it. Without a fact it becomes a load too, if the task touches the location again: the next
  accumulation then has a fact. The order of operations stays.
- `store_same`: a store of the value that the location holds already is removed.

A write ends the facts of all locations that it may touch: `b[i + 1]` leaves `b[i]` alone, `b[j]` does not. Facts enter
a loop for locations that nothing in the loop writes, and outlive it for the same; what the loop itself made ends with
it, as it may not have run. Facts of a reference that the task accumulates into, or updates atomically, at elements that
other iterations may touch are never made: any other write by another iteration would be a race.

Never moves a load. Never looks from one iteration of a loop to the next. Linear in the size of the task
times its depth: a reference has a limited number of facts.
"""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.location_table import SCAN, LocationTable
from qdtrace.analysis.memory import MemoryLocation, TaskMemory
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.carries import Carry, carries_of, with_carries
from qdtrace.ir.combining import combining
from qdtrace.ir.dataflow import Flow
from qdtrace.ir.memory import touched, written
from qdtrace.ir.primitives import ACCUM, IF, LOAD, STORE
from qdtrace.ir.program import Atom, Eqn, Program, Task, Var
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import SCALARS
from qdtrace.ir.walk import walk_inside
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from qdtrace.analysis.region_summary import Key


    Note = Callable[[str, Eqn, "list[tuple[MemoryLocation, Atom | None]]"], None]


@frozen
class StoreForwarding(TaskPass):
    """Replaces loads by the values that earlier equations stored or loaded."""

    name: ClassVar[str] = "store_forwarding"

    def on_task(self, task: Task, program: Program) -> Task:
        return forwarded(task)


def forwarded(task: Task, note: Note | None = None) -> Task:
    """Returns the task with its loads forwarded; calls `note` with the facts at the borders of regions."""
    memory = TaskMemory(task)
    # Nothing to find where no reference is touched twice.
    if all(len(memory.accesses[ref]) < 2 for ref in memory.tracked):
        return task
    return _Forwarder(memory, note).rebuild_task(task)


@mutable(eq=False, slots=True)
class _Choice:
    """The value of a location after an `if` whose sides leave different ones; made a result of it on demand."""

    carries: list[Carry]
    """Additional results of the `if`, to which this one is appended on demand."""
    sides: tuple[_Value, _Value]
    ref: Var
    made: Var | None = None


_Value = Atom | _Choice
_Facts = LocationTable[_Value]


class _Choosing(Rebuilder):
    """Gives each `if` its additional results."""

    def __init__(self, carries: Mapping[Eqn, Sequence[Carry]]) -> None:
        super().__init__()
        self._carries = carries

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns the equation with its additional results."""
        made = super().rebuild_eqn(eqn)
        return with_carries(made, [*carries_of(made), *self._carries[eqn]]) if eqn in self._carries else made


class _Forwarder(Flow[Var, "_Facts"]):
    def __init__(self, memory: TaskMemory, note: Note | None) -> None:
        super().__init__()
        self.memory = memory
        self.note = note
        self.repeated: set[Key] | None = None
        self.carries: dict[Eqn, list[Carry]] = {}
        """Additional results of each `if`."""
        self.reformed = False
        """True if the form of some integer has changed, so that forms computed from it are computed anew."""

    def rebuild_task(self, task: Task) -> Task:
        """Returns the task with its loads forwarded."""
        # The head is a block of its own: other iterations may have written since it read.
        head = self.rebuild_eqns(task.head)
        start, stop = self.atoms((task.start, task.stop))
        self.facts.clear()
        made = task.rebuilt(self.rebuild_block(task.body), head, start, stop)
        chosen = {eqn: more for eqn, more in self.carries.items() if more}
        return _Choosing(chosen).rebuild_task(made) if chosen else made

    def visit(self, eqn: Eqn) -> None:
        """Appends the rewritten equation, and records the content of memory after it."""
        made = self.rebuild_eqn(eqn)
        if made.primitive.values is not None and made.invars[0] in self.memory.tracked:
            self._memory(made)
            return
        if not made.blocks and made.outvars:
            self.reformed |= made is not eqn and not made.outvars[0].dtype.is_float
            if self.reformed:
                self.memory.forms.visit(made)
                self.memory.renew(made.outvars[0])
        self.append(made)

    def _memory(self, eqn: Eqn) -> None:
        location = self.memory.of(eqn)
        facts = self.facts.get(location.ref)
        if facts is None:
            facts = self.facts[location.ref] = _Facts()
        known = facts.get(location)
        prim = eqn.primitive
        if prim is LOAD:
            var = eqn.outvars[0]
            if known is None:
                facts.put(location, var)
                self.append(eqn)
                return
            value = self.env[var] = self._value(known)
            if not value.dtype.is_float:
                self.reformed = True
                self.memory.forms.forms[var] = self.memory.forms.of(value)
                self.memory.renew(var)
            if known is not value:
                facts.put(location, value)
            return
        value = eqn.invars[1]
        if prim is STORE and known is not None and known == value:
            return  # store_same
        if prim is ACCUM and known is None and location.key in self._repeated():
            old = Var(SCALARS[location.ref.dtype], location.ref.hint)
            self.append(Eqn(LOAD, (location.ref, *location.indices), (old,), {}, (), eqn.loc))
            known = old
        if prim is ACCUM and known is not None:  # accum_to_store
            var = Var(SCALARS[location.ref.dtype], location.ref.hint)
            operation = combining(str(eqn.params["op"]), var.dtype)
            combined = Eqn(operation, (self._value(known), value), (var,), {}, (), eqn.loc)
            self.memory.forms.visit(combined)
            self.append(combined)
            eqn = Eqn(STORE, (location.ref, var, *location.indices), (), {}, (), eqn.loc)
            prim, value = STORE, var
        facts.forget(location, self.memory)
        if prim is STORE:
            facts.put(location, value)
        self.append(eqn)

    def _repeated(self) -> Collection[Key]:
        """Returns the locations with several accesses in references that the task accumulates into."""
        if self.repeated is None:
            counts: Counter[Key] = Counter()
            for ref in self.memory.tracked:
                eqns = self.memory.accesses[ref]
                if any(e.primitive is ACCUM for e in eqns):
                    counts.update(self.memory.of(e).key for e in eqns)
            self.repeated = {key for key, n in counts.items() if n > 1}
        return self.repeated

    def _value(self, value: _Value) -> Atom:
        """Returns the atom of a value; a choice becomes a result of its `if`."""
        if not isinstance(value, _Choice):
            return value
        if value.made is None:
            atoms = [self._value(side) for side in value.sides]
            value.made = Var(SCALARS[value.ref.dtype], value.ref.hint)
            value.carries.append(Carry(value.made, tuple(atoms)))
        return value.made

    # Regions.

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns the equation with operands replaced and blocks rebuilt with the facts that hold at their start."""
        if not eqn.blocks:
            return super().rebuild_eqn(eqn)
        refs = list(self.memory.tracked.intersection(touched(walk_inside(eqn))))
        return self._if(eqn, refs) if eqn.primitive is IF else self._loop(eqn, refs)

    def copied(self, fact: _Facts) -> _Facts:
        """Returns an independent table with the same content."""
        return fact.copy()

    def _if(self, eqn: Eqn, refs: list[Var]) -> Eqn:
        blocks, after = self.sides(eqn, refs, repeat(self.taken(refs)))
        made = eqn.rebuilt(self.atoms(eqn.invars), blocks)
        carries = self.carries[made] = []
        choices: dict[tuple[int, int], _Choice] = {}
        for ref in refs:
            if ref in after[0] and ref in after[1]:
                self.facts[ref] = _merged(carries, choices, ref, after[0][ref], after[1][ref])
        self._tell("after if", eqn, refs)
        return made

    def _loop(self, eqn: Eqn, refs: list[Var]) -> Eqn:
        if any(ref in self.facts for ref in written(walk_inside(eqn))):
            for ref, locations in self.memory.inside(eqn, lambda p: p.writes).items():
                facts = self.facts.get(ref)
                if facts is None:
                    continue
                if len(locations) > SCAN:
                    del self.facts[ref]
                    continue
                for location in locations:
                    facts.forget(location, self.memory)
        self._tell("into " + eqn.primitive.name, eqn, refs)
        entry = self.taken(refs)
        blocks, _ = self.sides(eqn, refs, repeat(entry))
        self.facts.update(entry)
        return eqn.rebuilt(self.atoms(eqn.invars), blocks)

    def _tell(self, where: str, eqn: Eqn, refs: Iterable[Var]) -> None:
        if self.note is not None:
            known = [pair for ref in refs if ref in self.facts for pair in self.facts[ref]]
            self.note(where, eqn, [(location, None if isinstance(v, _Choice) else v) for location, v in known])


def _merged(
    carries: list[Carry], choices: dict[tuple[int, int], _Choice], ref: Var, then: _Facts, other: _Facts
) -> _Facts:
    """Returns the facts after an `if`: locations whose value both sides know, as a choice if the values differ."""
    merged = _Facts()
    for location, value in then:
        opposite = other.get(location)
        if opposite is None:
            continue
        if opposite == value:
            merged.put(location, value)
            continue
        pair = id(value), id(opposite)
        if pair not in choices:
            choices[pair] = _Choice(carries, (value, opposite), ref)
        merged.put(location, choices[pair])
    return merged
