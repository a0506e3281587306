"""Memory to registers (mem2reg): private memory becomes carried values of `for` and `while` and results of `if`.

Before:  c: cell[f32] = cell[dtype=f32, shape=()]      After:  c_1: f32 = for k in 0:i32 : n : 1:i32 carry c = 0.0:f32
         store c 0.0:f32                                         a: f32 = load x k
         for k in 0:i32 : n : 1:i32                              b: f32 = add c a
           a: f32 = load x k                                     yield b
           accum[op=add] c a                                   store y c_1 i
         s: f32 = load c
         store y s i

A *slot* is a cell of rank 0, or one element of a private array whose every access has literal indices in range. A
slot is carried by a loop only where its value at the loop's head may be read: it is read in the loop before it is
stored, or after the loop (liveness over the structured blocks, Cytron et al. 1991 without the need for dominance
frontiers, as blocks are structured). A slot read before any store is undefined; zero is used for it.

Relies on nothing. Never touches arrays with a computed index, cells with atomics, or cells that the condition of a
`while` stores but the block around owns: a condition has no way to carry a value out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qdtrace.ir.carries import Carry, carries_of, with_carries
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import ACCUM, ATOMIC, CELL, IF, LOAD, STORE, WHILE
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, is_local, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import ScalarType
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


SLOT_LIMIT = 256
"""Largest number of elements of a private array that is promoted: the scalar budget of one value."""


@dataclass(frozen=True)
class Mem2Reg(TaskPass):
    """Promotes private memory to values (mem2reg)."""

    name: ClassVar[str] = "mem2reg"

    def on_task(self, task: Task, program: Program) -> Task:
        slots = _Slots(task.body)
        if not slots.cells:
            return task
        return task.rebuilt(_Promoter(slots, task.body).rebuild_block(task.body))


@dataclass(frozen=True, slots=True)
class _Summary:
    """The accesses of a block to slots of the blocks around it."""

    stored: frozenset[int]
    exposed: frozenset[int]
    """Slots that may be read before the block stores them (upward exposed)."""
    surely: frozenset[int]
    """Slots that are stored on every path through the block."""


class _Slots:
    """The promotable slots of a task, numbered by first access, and the summary of every inner block."""

    def __init__(self, body: Block) -> None:
        self.cells: set[Var] = set()
        self.number: dict[tuple[Var, int], int] = {}
        self.owner: list[Var] = []
        self.summary: dict[int, _Summary] = {}
        self._collect(body)
        if self.cells:
            self.owner = [cell for cell, _ in self.number]
            self._summarise(body)

    def of(self, eqn: Eqn) -> int | None:
        """Returns the slot that a load, store or accumulation accesses, or None."""
        if eqn.primitive.values is None or eqn.invars[0] not in self.cells:
            return None
        cell = eqn.invars[0]
        assert isinstance(cell, Var)
        return self.number.get((cell, _flat_index(cell, indices_of(eqn))))  # type: ignore[arg-type]

    def _collect(self, body: Block) -> None:
        rejected: set[Atom] = set()
        for eqn in walk_eqns(body):
            prim = eqn.primitive
            if prim is CELL:
                if ref_type(eqn.outvars[0]).size <= SLOT_LIMIT:
                    self.cells.add(eqn.outvars[0])
            elif eqn.primitive.values is not None and is_local(eqn.invars[0]):
                cell = eqn.invars[0]
                assert isinstance(cell, Var)
                flat = None if prim is ATOMIC else _flat_index(cell, indices_of(eqn))
                if flat is None:
                    rejected.add(cell)
                else:
                    self.number.setdefault((cell, flat), len(self.number))
            elif prim is WHILE:
                rejected |= _stored_outside(eqn.blocks[0])
        self.cells -= rejected

    def _summarise(self, block: Block) -> _Summary:
        stored: set[int] = set()
        exposed: set[int] = set()
        surely: set[int] = set()
        made: set[Var] = set()
        for eqn in block.eqns:
            prim = eqn.primitive
            if eqn.blocks:
                inner = [self._summarise(b) for b in eqn.blocks]
                if prim is IF:
                    now = inner[0].exposed | inner[1].exposed
                    then = inner[0].surely & inner[1].surely
                elif prim is WHILE:
                    now = inner[0].exposed | inner[1].exposed
                    then = frozenset[int]()
                else:
                    now, then = inner[0].exposed, frozenset[int]()
                exposed |= now - surely
                surely |= then
                for s in inner:
                    stored |= s.stored
            elif prim is CELL:
                made.add(eqn.outvars[0])
            elif (slot := self.of(eqn)) is not None:
                if prim is not STORE and slot not in surely:
                    exposed.add(slot)
                if prim is not LOAD:
                    stored.add(slot)
                    surely.add(slot)
        if made:
            inside = {s for s in stored | exposed if self.owner[s] in made}
            stored -= inside
            exposed -= inside
            surely -= inside
        summary = _Summary(frozenset(stored), frozenset(exposed), frozenset(surely))
        self.summary[id(block)] = summary
        return summary


def _stored_outside(block: Block) -> set[Atom]:
    """Returns the cells that a block stores to and does not allocate."""
    stored = {e.invars[0] for e in walk_eqns(block) if e.primitive in (STORE, ACCUM)}
    return stored.difference(*[e.outvars for e in walk_eqns(block) if e.primitive is CELL])


def _flat_index(cell: Var, indices: Sequence[Atom]) -> int | None:
    """Returns the row-major position if all indices are literals in range, else None."""
    flat = 0
    for atom, size in zip(indices, cell.type.shape, strict=True):  # type: ignore[union-attr]
        if not isinstance(atom, Literal):
            return None
        k = int(atom.value)
        if not 0 <= k < size:
            return None
        flat = flat * size + k
    return flat


class _Promoter(Rebuilder):
    """Rebuilds a task in program order with the current value of each slot."""

    def __init__(self, slots: _Slots, body: Block) -> None:
        super().__init__()
        self.slots = slots
        self.values: dict[int, Atom] = {}
        self.live_after: dict[Eqn, frozenset[int]] = {}
        self.positions = {n: key for key, n in slots.number.items()}
        self._find_live(body, frozenset())

    def _find_live(self, block: Block, after: Iterable[int]) -> None:
        """Computes liveness: for each structured equation, the slots that are read after it before they are stored."""
        live = set(after)
        for eqn in reversed(block.eqns):
            prim = eqn.primitive
            if eqn.blocks:
                self.live_after[eqn] = now = frozenset(live)
                summaries = [self.slots.summary[id(b)] for b in eqn.blocks]
                exposed = frozenset[int]().union(*(s.exposed for s in summaries))
                if prim is IF:
                    for inner in eqn.blocks:
                        self._find_live(inner, now)
                    live -= summaries[0].surely & summaries[1].surely
                else:
                    self._find_live(eqn.blocks[-1], now | exposed)
                    if prim is WHILE:
                        self._find_live(eqn.blocks[0], frozenset())
                live |= exposed
            elif (slot := self.slots.of(eqn)) is not None:
                if prim is STORE:
                    live.discard(slot)
                else:
                    live.add(slot)

    def _value(self, slot: int) -> Atom:
        value = self.values.get(slot)
        return literal(0, self.slots.owner[slot].dtype) if value is None else value

    def _fresh(self, slot: int) -> Var:
        cell, position = self.positions[slot]
        hint = cell.hint if not cell.type.shape else f"{cell.hint}{position}"  # type: ignore[union-attr]
        return Var(ScalarType(cell.dtype), hint)

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, unless it accesses a slot: then it reads or sets the slot's value."""
        prim = eqn.primitive
        if prim is CELL and eqn.outvars[0] in self.slots.cells:
            return
        slot = self.slots.of(eqn)
        if slot is None:
            super().visit(eqn)
        elif prim is LOAD:
            self.env[eqn.outvars[0]] = self._value(slot)
        elif prim is STORE:
            self.values[slot] = self.atom(eqn.invars[1])
        else:
            result = self._fresh(slot)
            operation = combining(str(eqn.params["op"]), result.dtype)
            self.append(Eqn(operation, (self._value(slot), self.atom(eqn.invars[1])), (result,), {}, (), eqn.loc))
            self.values[slot] = result

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns the equation rebuilt; slots stored in its blocks become carries or results."""
        if not eqn.blocks:
            return super().rebuild_eqn(eqn)
        return self._if(eqn) if eqn.primitive is IF else self._loop(eqn)

    def _if(self, eqn: Eqn) -> Eqn:
        summaries = [self.slots.summary[id(b)] for b in eqn.blocks]
        stored = sorted(summaries[0].stored | summaries[1].stored)
        wanted = [s for s in stored if s in self.live_after[eqn]]
        before = {s: self.values.get(s) for s in stored}
        blocks: list[Block] = []
        sides: list[list[Atom]] = []
        for number in range(len(eqn.blocks)):
            blocks.append(self.region(eqn, number))
            sides.append([self._value(s) for s in wanted])
            self._restore(before)
        more = [Carry(self._fresh(s), tuple(values)) for s, *values in zip(wanted, *sides, strict=True)]
        return self._with(eqn, blocks, stored, wanted, more)

    def _loop(self, eqn: Eqn) -> Eqn:
        summaries = [self.slots.summary[id(b)] for b in eqn.blocks]
        head = self.live_after[eqn].union(*(s.exposed for s in summaries))
        stored = sorted(summaries[-1].stored)
        carried = [s for s in stored if s in head]
        initial = [self._value(s) for s in carried]
        blocks: list[Block] = []
        params: list[list[Var]] = []
        for number in range(len(eqn.blocks)):
            params.append([self._fresh(s) for s in carried])
            self._restore(dict.fromkeys(stored))
            self.values.update(zip(carried, params[-1], strict=True))
            blocks.append(self.region(eqn, number))
        last = [self._value(s) for s in carried]
        rows = zip(carried, last, zip(*params, strict=True), initial, strict=True)
        more = [Carry(self._fresh(s), (result,), names, first) for s, result, names, first in rows]
        return self._with(eqn, blocks, stored, carried, more)

    def _with(
        self, eqn: Eqn, blocks: Sequence[Block], stored: Iterable[int], kept: Iterable[int], more: Sequence[Carry]
    ) -> Eqn:
        """Returns the equation with carries for the `kept` slots; other stored slots have no known value after it."""
        self._restore(dict.fromkeys(stored))
        self.values.update(zip(kept, [c.outvar for c in more], strict=True))
        made = eqn.rebuilt(self.atoms(eqn.invars), tuple(blocks))
        return with_carries(made, [*carries_of(made), *more])

    def _restore(self, values: dict[int, Atom | None]) -> None:
        for slot, value in values.items():
            if value is None:
                self.values.pop(slot, None)
            else:
                self.values[slot] = value
