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

from itertools import repeat
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.region_summary import Summaries
from qdtrace.frozen import frozen
from qdtrace.ir.carries import Carry, carries_of, giving_blocks, with_carries
from qdtrace.ir.combining import combining
from qdtrace.ir.dataflow import Flow
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, ATOMIC, CELL, IF, LOAD, STORE, WHILE
from qdtrace.ir.program import Atom, Block, Eqn, Literal, Program, Task, Var, is_local, literal, ref_type
from qdtrace.ir.types import SCALARS
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    _Slot = tuple[Var, int]


SLOT_LIMIT = 256
"""Largest number of elements of a private array that is promoted."""


@frozen
class Mem2Reg(TaskPass):
    """Promotes private memory to values (mem2reg)."""

    name: ClassVar[str] = "mem2reg"

    def on_task(self, task: Task, program: Program) -> Task:
        slots = _Slots(task.body)
        if not slots.cells:
            return task
        return task.rebuilt(_Promoter(slots, task.body).rebuild_block(task.body))


class _Slots:
    """The promotable slots of a task, numbered by first access, and the summary of every inner block."""

    def __init__(self, body: Block) -> None:
        self.cells: set[Var] = set()
        self.number: dict[_Slot, int] = {}
        self.summaries = Summaries(self.of)
        rejected: set[Atom] = set()
        for eqn in walk_eqns(body):
            prim = eqn.primitive
            if prim is CELL:
                if ref_type(eqn.outvar).size <= SLOT_LIMIT:
                    self.cells.add(eqn.outvar)
            elif prim.is_access and is_local(eqn.invars[0]):
                slot = None if prim is ATOMIC else _slot_of(eqn)
                if slot is None:
                    rejected.add(eqn.invars[0])
                else:
                    self.number.setdefault(slot, len(self.number))
            elif prim is WHILE:
                rejected |= _stored_outside(eqn.blocks[0])
        self.cells -= rejected

    def of(self, eqn: Eqn) -> _Slot | None:
        """Returns the slot that a load, store or accumulation accesses, or None."""
        return _slot_of(eqn) if eqn.primitive.is_access and eqn.invars[0] in self.cells else None

    def stored_in(self, eqn: Eqn) -> list[_Slot]:
        """Returns the slots that the blocks of an equation may store, by number."""
        return sorted(self.summaries.of_eqn(eqn).perhaps_written, key=self.number.__getitem__)


def _stored_outside(block: Block) -> set[Atom]:
    """Returns the cells that a block stores to and does not allocate."""
    stored = {e.invars[0] for e in walk_eqns(block) if e.primitive in (STORE, ACCUM)}
    return stored.difference(*[e.outvars for e in walk_eqns(block) if e.primitive is CELL])


def _slot_of(eqn: Eqn) -> _Slot | None:
    """Returns the cell that an equation accesses with the row-major position, or None if an index is no literal in
    range."""
    cell, flat = reference(eqn), 0
    for atom, size in zip(indices_of(eqn), ref_type(cell).shape, strict=True):
        if not isinstance(atom, Literal) or not 0 <= int(atom.value) < size:
            return None
        flat = flat * size + int(atom.value)
    return cell, flat


class _Promoter(Flow["_Slot", "Atom"]):
    """Rebuilds a task in program order with the current value of each slot."""

    def __init__(self, slots: _Slots, body: Block) -> None:
        super().__init__()
        self.slots = slots
        self.live_after: dict[Eqn, frozenset[_Slot]] = {}
        self._find_live(body, frozenset())

    def _find_live(self, block: Block, after: Iterable[_Slot]) -> None:
        """Computes liveness: for each structured equation, the slots that are read after it before they are stored."""
        live = set(after)
        for eqn in reversed(block.eqns):
            if eqn.blocks:
                summary = self.slots.summaries.of_eqn(eqn)
                self.live_after[eqn] = now = frozenset(live)
                for inner in giving_blocks(eqn):
                    self._find_live(inner, now if eqn.primitive is IF else now | summary.exposed)
                if eqn.primitive is WHILE:
                    self._find_live(eqn.blocks[0], frozenset())
                live -= summary.written
                live |= summary.exposed
            elif (slot := self.slots.of(eqn)) is not None:
                if eqn.primitive is STORE:
                    live.discard(slot)
                else:
                    live.add(slot)

    def _value(self, slot: _Slot, facts: Mapping[_Slot, Atom] | None = None) -> Atom:
        value = (self.facts if facts is None else facts).get(slot)
        return literal(0, slot[0].dtype) if value is None else value

    def _fresh(self, slot: _Slot) -> Var:
        cell, position = slot
        return Var(SCALARS[cell.dtype], f"{cell.hint}{position}" if ref_type(cell).shape else cell.hint)

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
            self.facts[slot] = self.atom(eqn.invars[1])
        else:
            result = self._fresh(slot)
            operation = combining(str(eqn.params["op"]), result.dtype)
            self.append(Eqn(operation, (self._value(slot), self.atom(eqn.invars[1])), (result,), {}, (), eqn.loc))
            self.facts[slot] = result

    def rebuild_eqn(self, eqn: Eqn) -> Eqn:
        """Returns the equation rebuilt; slots stored in its blocks become carries or results."""
        if not eqn.blocks:
            return super().rebuild_eqn(eqn)
        return self._if(eqn) if eqn.primitive is IF else self._loop(eqn)

    def _if(self, eqn: Eqn) -> Eqn:
        stored = self.slots.stored_in(eqn)
        wanted = [s for s in stored if s in self.live_after[eqn]]
        blocks, ends = self.sides(eqn, stored, repeat(self.taken(stored)))
        sides = [[self._value(s, end) for s in wanted] for end in ends]
        more = [Carry(self._fresh(s), tuple(values)) for s, *values in zip(wanted, *sides, strict=True)]
        return self._with(eqn, blocks, wanted, more)

    def _loop(self, eqn: Eqn) -> Eqn:
        head = self.live_after[eqn] | self.slots.summaries.of_eqn(eqn).exposed
        stored = self.slots.stored_in(eqn)
        carried = [s for s in stored if s in head]
        initial = [self._value(s) for s in carried]
        self.taken(stored)
        params = [[self._fresh(s) for s in carried] for _ in eqn.blocks]
        blocks, ends = self.sides(eqn, stored, [dict(zip(carried, each, strict=True)) for each in params])
        last = [self._value(s, ends[-1]) for s in carried]
        rows = zip(carried, last, zip(*params, strict=True), initial, strict=True)
        more = [Carry(self._fresh(s), (result,), names, first) for s, result, names, first in rows]
        return self._with(eqn, blocks, carried, more)

    def _with(self, eqn: Eqn, blocks: tuple[Block, ...], kept: Iterable[_Slot], more: Sequence[Carry]) -> Eqn:
        """Returns the equation with carries for the `kept` slots; other stored slots have no known value after it."""
        self.facts.update(zip(kept, [c.outvar for c in more], strict=True))
        made = eqn.rebuilt(self.atoms(eqn.invars), blocks)
        return with_carries(made, [*carries_of(made), *more])
