"""Store-to-load forwarding: a load of what the iteration stored or loaded before takes the value.

Before:  store b v i                       After:  store b v i
         a: f32 = load b i                         w: f32 = if p
         if p                                        c: f32 = mul v 2.0:f32
           c: f32 = mul a 2.0:f32                    store b c i
           store b c i                               yield c
         d: f32 = load b i                         else
         store y d i                                 yield v
                                                   store y w i

A forward data-flow over the structured blocks. A fact says that a place (`analysis/places`) holds a value now. Rules:

- `forward`: a load of a place with a fact becomes its value; a load or store makes a fact.
- `choose`: where both sides of an `if` leave facts with different values, the `if` gives the value, if it is asked for.
- `accum_to_store`: an accumulation into a place with a fact becomes an operation and a store, where no other iteration
  can add to it. Without a fact it becomes a load too, if the task touches the place again: the next accumulation then
  has a fact. The order of operations stays.
- `store_same`: a store of the value that is there already goes.

A write ends the facts of all places that it may touch: `b[i + 1]` leaves `b[i]` alone, `b[j]` does not. Facts enter a
loop for places that nothing in the loop writes, and outlive it for the same; what the loop itself made ends with it, as
it may not have run. Facts of a reference that the task accumulates into, or updates atomically, at elements that other
iterations may touch are never made: any other write by another iteration would be a race.

Never moves a load. Never looks from one iteration of a loop to the next. Linear in the size of the task
times its depth: a reference has a limited number of facts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.affine import AffineForms
from qdtrace.analysis.effects import PURE, Access, access_of
from qdtrace.analysis.place_table import SCAN, PlaceTable
from qdtrace.analysis.places import Place, Places, References, places_in
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import WRITERS
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var
from qdtrace.ir.types import ScalarType
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from qdtrace.analysis.region_summary import Key


    Note = Callable[[str, Eqn, "list[tuple[Place, Atom | None]]"], None]

_LOAD, _STORE = PRIMITIVES["load"], PRIMITIVES["store"]


@dataclass(frozen=True)
class StoreForwarding(TaskPass):
    """Values of memory from the equations that put them there."""

    name: ClassVar[str] = "store_forwarding"

    def on_task(self, task: Task, program: Program) -> Task:
        return forwarded(task)


def forwarded(task: Task, note: Note | None = None) -> Task:
    """The task with its loads forwarded; `note` is told the facts at the borders of regions."""
    access: dict[Eqn, Access] = {}
    touched = access_of((*task.head, *task.body.eqns), access)
    if not touched.reads and not touched.writes:
        return task
    forms = AffineForms(task, flips=True)
    references = References(task, forms)
    # Nothing to find where no reference is touched twice.
    if all(len(references.accesses[ref]) < 2 for ref in references.tracked):
        return task
    return _Forwarder(forms, references, access, note).rewrite(task)


@dataclass(eq=False, slots=True)
class _Choice:
    """The value of a place after an `if` whose sides leave different ones; becomes a result when it is asked for."""

    owner: _If
    sides: tuple[_Value, _Value]
    ref: Var
    made: Var | None = None


_Value = Atom | _Choice


@dataclass(eq=False, slots=True)
class _If:
    """An `if` that can still get results."""

    eqn: Eqn
    invars: tuple[Atom, ...]
    sides: list[tuple[list[_Item], list[Atom]]] = field(default_factory=lambda: [])
    outvars: list[Var] = field(default_factory=list[Var])
    choices: dict[tuple[int, int], _Choice] = field(default_factory=lambda: {})

    def close(self) -> Eqn:
        """The equation; the original one when nothing changed."""
        old = self.eqn
        blocks = tuple([_block(b, items, results) for b, (items, results) in zip(old.blocks, self.sides, strict=True)])
        if self.invars == old.invars and all(a is b for a, b in zip(blocks, old.blocks, strict=True)):
            return old
        return Eqn(old.primitive, self.invars, (*old.outvars, *self.outvars), old.params, blocks, old.loc)


_Item = Eqn | _If


def _block(old: Block, items: list[_Item], results: Iterable[Atom]) -> Block:
    eqns, results = _close(items), tuple(results)
    same = len(eqns) == len(old.eqns) and all(a is b for a, b in zip(eqns, old.eqns, strict=True))
    same = same and len(results) == len(old.results)
    same = same and all(a is b for a, b in zip(results, old.results, strict=True))
    return old if same else Block(old.params, eqns, results)


def _close(items: list[_Item]) -> tuple[Eqn, ...]:
    return tuple([i.close() if isinstance(i, _If) else i for i in items])


_Facts = PlaceTable[_Value]


class _Forwarder:
    def __init__(
        self, forms: AffineForms, references: References, access: dict[Eqn, Access], note: Note | None
    ) -> None:
        self.forms = forms
        self.places = Places(forms)
        self.references = references
        self.access = access
        self.note = note
        self.facts: dict[Var, _Facts] = {}
        self.replaced: dict[Var, Atom] = {}
        self.repeated: set[Key] | None = None

    def rewrite(self, task: Task) -> Task:
        # The head is a block of its own: other iterations may have written since it read.
        head = Block((), task.head)
        new_head = _block(head, self._eqns(head.eqns), ())
        start, stop = self._atoms((task.start, task.stop))
        self.facts.clear()
        body = _block(task.body, self._eqns(task.body.eqns), ())
        if new_head is head and body is task.body and start is task.start and stop is task.stop:
            return task
        return replace(task, head=new_head.eqns, start=start, stop=stop, body=body)

    def _atoms(self, atoms: Iterable[Atom]) -> tuple[Atom, ...]:
        return tuple([self.replaced.get(a, a) if isinstance(a, Var) else a for a in atoms])

    def _eqns(self, eqns: Iterable[Eqn]) -> list[_Item]:
        out: list[_Item] = []
        for eqn in eqns:
            if eqn.blocks:
                out.append(self._if(eqn) if eqn.primitive.name == "if" else self._loop(eqn))
                continue
            invars = self._atoms(eqn.invars)
            if any(a is not b for a, b in zip(invars, eqn.invars, strict=True)):
                eqn = replace(eqn, invars=invars)
            if eqn.primitive.effects and eqn.invars and eqn.invars[0] in self.references.tracked:
                self._memory(eqn, out)
            else:
                self.forms.visit(eqn)
                if eqn.outvars:
                    self.places.renew(eqn.outvars[0])
                out.append(eqn)
        return out

    def _memory(self, eqn: Eqn, out: list[_Item]) -> None:
        place = self.places.of(eqn)
        facts = self.facts.get(place.ref)
        if facts is None:
            facts = self.facts[place.ref] = _Facts()
        known = facts.get(place)
        name = eqn.primitive.name
        if name == "load":
            var = eqn.outvars[0]
            if known is None:
                facts.put(place, var)
                out.append(eqn)
                return
            value = self.replaced[var] = self._value(known)
            if not value.dtype.is_float:
                self.forms.forms[var] = self.forms.of(value)
                self.places.renew(var)
            if known is not value:
                facts.put(place, value)
            return
        value = eqn.invars[1]
        if name == "store" and known is not None and known == value:
            return  # store_same
        if name == "accum" and known is None and place.key in self._repeated():
            old = Var(ScalarType(place.ref.dtype), place.ref.hint)
            out.append(Eqn(_LOAD, (place.ref, *place.indices), (old,), {}, (), eqn.loc))
            known = old
        if name == "accum" and known is not None:  # accum_to_store
            var = Var(ScalarType(place.ref.dtype), place.ref.hint)
            operation = combining(str(eqn.params["op"]), var.dtype)
            combined = Eqn(operation, (self._value(known), value), (var,), {}, (), eqn.loc)
            self.forms.visit(combined)
            out.append(combined)
            eqn = Eqn(_STORE, (place.ref, var, *place.indices), (), {}, (), eqn.loc)
            name, value = "store", var
        facts.forget(place, self.places)
        if name == "store":
            facts.put(place, value)
        out.append(eqn)

    def _repeated(self) -> Collection[Key]:
        """Places into which the task accumulates and that it touches elsewhere too."""
        if self.repeated is None:
            counts: Counter[Key] = Counter()
            for ref in self.references.tracked:
                eqns = self.references.accesses[ref]
                if any(e.primitive.name == "accum" for e in eqns):
                    counts.update(self.places.of(e).key for e in eqns)
            self.repeated = {key for key, n in counts.items() if n > 1}
        return self.repeated

    def _value(self, value: _Value) -> Atom:
        """The atom of a value; an `if` gets the result that it needs for it."""
        if not isinstance(value, _Choice):
            return value
        if value.made is None:
            atoms = [self._value(side) for side in value.sides]
            value.made = Var(ScalarType(value.ref.dtype), value.ref.hint)
            value.owner.outvars.append(value.made)
            for (_, results), atom in zip(value.owner.sides, atoms, strict=True):
                results.append(atom)
        return value.made

    # Regions.

    def _touched(self, eqn: Eqn) -> list[Var]:
        access = self.access.get(eqn, PURE)
        return list(self.references.tracked & (access.reads | access.writes))

    def _snapshot(self, refs: Iterable[Var]) -> dict[Var, _Facts]:
        return {ref: self.facts[ref].copy() for ref in refs if ref in self.facts}

    def _if(self, eqn: Eqn) -> _If:
        touched = self._touched(eqn)
        node = _If(eqn, self._atoms(eqn.invars))
        before = self._snapshot(touched)
        after: list[dict[Var, _Facts]] = []
        for block in eqn.blocks:
            items = self._eqns(block.eqns)
            node.sides.append((items, list(self._atoms(block.results))))
            after.append({ref: self.facts.pop(ref) for ref in touched if ref in self.facts})
            self.facts.update({ref: facts.copy() for ref, facts in before.items()} if len(after) == 1 else {})
        for ref in touched:
            self.facts.pop(ref, None)
            if ref in after[0] and ref in after[1]:
                self.facts[ref] = _merged(node, ref, after[0][ref], after[1][ref])
        self._tell("after if", eqn, touched)
        return node

    def _loop(self, eqn: Eqn) -> Eqn:
        touched = self._touched(eqn)
        invars = self._atoms(eqn.invars)
        writes = self.access.get(eqn, PURE).writes
        if any(ref in self.facts for ref in touched if ref in writes):
            for ref, written in places_in(self.places, eqn.blocks, WRITERS).items():
                facts = self.facts.get(ref)
                if facts is None:
                    continue
                if len(written) > SCAN:
                    del self.facts[ref]
                    continue
                for place in written:
                    facts.forget(place, self.places)
        self._tell("into " + eqn.primitive.name, eqn, touched)
        entry = self._snapshot(touched)
        blocks: list[Block] = []
        for block in eqn.blocks:
            items = self._eqns(block.eqns)
            blocks.append(_block(block, items, self._atoms(block.results)))
            for ref in touched:
                self.facts.pop(ref, None)
            self.facts.update({ref: facts.copy() for ref, facts in entry.items()})
        same = all(a is b for a, b in zip(blocks, eqn.blocks, strict=True))
        if same and all(a is b for a, b in zip(invars, eqn.invars, strict=True)):
            return eqn
        return replace(eqn, invars=invars, blocks=tuple(blocks))

    def _tell(self, where: str, eqn: Eqn, refs: Iterable[Var]) -> None:
        if self.note is not None:
            known = [pair for ref in refs if ref in self.facts for pair in self.facts[ref]]
            self.note(where, eqn, [(place, None if isinstance(v, _Choice) else v) for place, v in known])


def _merged(node: _If, ref: Var, then: _Facts, other: _Facts) -> _Facts:
    """What both sides know."""
    merged = _Facts()
    for place, value in then:
        opposite = other.get(place)
        if opposite is None:
            continue
        if opposite == value:
            merged.put(place, value)
            continue
        pair = id(value), id(opposite)
        if pair not in node.choices:
            node.choices[pair] = _Choice(node, (value, opposite), ref)
        merged.put(place, node.choices[pair])
    return merged
