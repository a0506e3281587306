"""Loops over the same elements become one: each operation on an array of a lane is a loop when it is imported.

Before:  for k in 0:i32 : 64:i32 : 1:i32        After:  for k in 0:i32 : 64:i32 : 1:i32
           a: f32 = load x i k                             a: f32 = load x i k
           store row a k                                   store row a k
         for m in 0:i32 : 64:i32 : 1:i32                   b: f32 = load row k
           b: f32 = load row m                             c: f32 = exp b
           c: f32 = exp b                                  store y c i k
           store y c i m

The memory pass then hands the element on in a register, and the array goes if nothing else reads it. A loop moves up
to an earlier one if both run for the same elements, and each array that one of them writes and the other touches is
accessed at the index of the loop alone, in one place of its indices: then no trip meets the element of another one.
What they carry are sums, products and extremes, which each trip reads once; or one of them only moves elements, and
loses nothing where trips of the other one wait for each other. A loop that goes the other way carries nothing. What
lies between may not touch what the later loop writes, or write what it touches; equations that this one needs move
along, if they touch no memory, and so do single stores to its private arrays, which nothing else reads there. A loop
that only fills private arrays goes down, to the first that touches them, where its store is dead or the start of a sum.

Threads, which keep no rows (`Machine.keeps_rows`), fuse nests as well, from outside to inside: `for k: for m: ...` and
another such nest share their trips over `k`, and then what those hold is fused. Arrays become rows of the trips, or
elements (`contract_rows`).

Loops that hold branches or checks stay, on a CPU those that hold loops, and so does what would become more code than
`MOST` operations, or `HANDED`: sums of products have passes of their own, and long bodies run out of registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.cost import code_size
from qdtrace.analysis.index.trips import loop_values
from qdtrace.analysis.machine import CPU
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference, touched, written
from qdtrace.ir.primitives import ACCUM, ADD, AND, CELL, FOR, LOAD, MAX, MIN, MUL, OR, STORE, Effect
from qdtrace.ir.program import Block, Eqn, Var, is_local, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import used_vars, walk_eqns, walk_inside
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.index.progression import Progression
    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Atom, Program, Task

MOST = 128
"""Operations of a body from which on two loops stay apart."""
HANDED = 256
"""The same for loops of which the later one reads what the earlier one keeps in private memory: rows of a softmax."""
NEST = 512
"""The same for loops that hold loops: these share more than registers hold, and each array is memory of the device."""
LARGE = 1 << 12
"""Elements of a private array from which on loops stay apart: fused, more of them would be alive together."""
LIGHT = 4
"""The most operations of a trip that moves an element, about as many as it takes to store it and load it again."""
FAR = 256
"""Equations between two loops that are looked at."""
_PLAIN = (LOAD, STORE, ACCUM)
_COMBINING = (ADD, MUL, MIN, MAX, AND, OR)
_MEMORY = frozenset({Effect.READ, Effect.WRITE, Effect.ACCUM, Effect.ALLOC})


@frozen
class FuseLoops(TaskPass):
    """Fuses loops of an iteration over the same elements."""

    name: ClassVar[str] = "fuse_loops"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if sum([e.primitive is FOR for e in walk_eqns(task.body)]) < 2:
            return task
        return task.rebuilt(_Fuser(nests=not self.machine.keeps_rows).rebuild_block(task.body))


@frozen(eq=False, slots=True)
class _Facts:
    """Facts about an equation and those inside of it, which are found once."""

    is_fusible: bool
    combines: bool
    """True if a loop carries nothing but sums, products and extremes: each lane of a vector along it has a part."""
    moves: bool
    """True if a loop carries nothing, and computes little besides its loads and stores."""
    touches: set[Var]
    """References that it accesses."""
    writes: set[Var]
    may_end: bool
    """True if it has an effect besides those on memory: it may end the call, or depends on which lanes are active."""
    operations: int


class _Fuser(Rebuilder):
    def __init__(self, *, nests: bool) -> None:
        super().__init__()
        self._nests = nests
        self._facts: dict[Eqn, _Facts] = {}

    def rebuild_eqns(self, eqns: Sequence[Eqn]) -> tuple[Eqn, ...]:
        """Returns the equations with their loops fused."""
        out: list[Eqn] = []
        fills: list[Eqn] = []
        """Loops that fill an array, which wait for the one that touches it first."""
        for given in eqns:
            eqn = given
            for fill in self._wanted(fills, eqn):
                fills.remove(fill)
                if self._of(eqn).is_fusible and self._go_together(eqn, fill):
                    eqn = _filled(fill, eqn)
                else:
                    out.append(fill)
            if self._is_fill(eqn):
                fills.append(eqn)
            elif (found := self._earlier(out, eqn) if self._of(eqn).is_fusible else None) is not None:
                place, along = found
                for moved in along:
                    out.remove(moved)
                out[place : place + 1] = [*along, _joined(out[place], eqn)]
            else:
                out.append(eqn)
        return super().rebuild_eqns([*out, *fills])

    def _of(self, eqn: Eqn) -> _Facts:
        if eqn not in self._facts:
            every = [eqn, *walk_inside(eqn)]
            self._facts[eqn] = _Facts(
                _is_fusible(eqn, self._nests),
                eqn.primitive is FOR and _combines(eqn.blocks[0]),
                eqn.primitive is FOR and not eqn.outvars and _moves(eqn.blocks[0]),
                set(touched(every)),
                set(written(every)),
                any(not e.primitive.effects <= _MEMORY for e in every),
                sum([code_size(block) for block in eqn.blocks]),
            )
        return self._facts[eqn]

    def _is_fill(self, eqn: Eqn) -> bool:
        """Returns whether an equation is a loop that stores values into private arrays, and nothing else."""
        if not self._of(eqn).is_fusible or eqn.outvars:
            return False
        return all(e.blocks or (e.primitive is STORE and is_local(reference(e))) for e in walk_inside(eqn))

    def _wanted(self, fills: Sequence[Eqn], eqn: Eqn) -> list[Eqn]:
        """Returns the fills that come before an equation: it touches what they store, or may end the call."""
        if not fills:
            return []
        facts = self._of(eqn)
        return [f for f in fills if facts.may_end or not facts.touches.isdisjoint(self._of(f).writes)]

    def _earlier(self, before: Sequence[Eqn], loop: Eqn) -> tuple[int, list[Eqn]] | None:
        """Returns the place of a loop that another can be fused into, and equations between that move in front."""
        needs, mine = set(used_vars(loop)), self._of(loop)
        along: list[Eqn] = []
        stored = set[Var]()
        """Arrays of the equations that move along."""
        for place in range(len(before) - 1, max(-1, len(before) - 1 - FAR), -1):
            eqn = before[place]
            facts = self._of(eqn)
            is_needed = not needs.isdisjoint(eqn.outvars)
            is_free = facts.touches.isdisjoint(stored)
            if not is_needed and is_free and facts.is_fusible and self._go_together(eqn, loop):
                return place, along[::-1]
            if is_needed:
                if eqn.blocks or (eqn.primitive.effects and eqn.primitive is not CELL):
                    return None
                needs.update(used_vars(eqn))
                along.append(eqn)
            elif eqn.primitive is STORE and is_local(reference(eqn)) and reference(eqn) in mine.touches:
                needs.update(used_vars(eqn))
                along.append(eqn)
                stored.add(reference(eqn))
            elif facts.may_end or not is_free or mine.writes & facts.touches or mine.touches & facts.writes:
                return None
        return None

    def _go_together(self, one: Eqn, other: Eqn) -> bool:
        """Returns whether a loop may run its trips right behind those of another one, for the same element."""
        first, second = loop_values(*one.bounds), loop_values(*other.bounds)
        index, its = one.index, other.index
        if first is None or second is None or index.type != its.type or one.params != other.params:
            return False
        if first != second and (other.outvars or not _is_reversed(first, second)):
            return False
        facts = self._of(one), self._of(other)
        if not all(f.combines for f in facts) and not any(f.moves for f in facts):
            return False
        holds = any(e.blocks for loop in (one, other) for e in loop.blocks[0].eqns)
        if holds and facts[0].touches.isdisjoint(facts[1].touches):
            return False  # nothing to hand on, and what each has of its own would be alive together
        hands_on = any(is_local(ref) for ref in facts[0].writes & facts[1].touches)
        if sum(f.operations for f in facts) > (NEST if holds else HANDED if hands_on else MOST):
            return False
        accesses = [(e, index) for e in walk_inside(one) if e.primitive.is_access]
        accesses += [(e, its) for e in walk_inside(other) if e.primitive.is_access]
        turned = self._of(other).writes if first != second else set[Var]()
        for ref in self._of(one).writes | self._of(other).writes:
            some = [(e, k) for e, k in accesses if reference(e) is ref]
            if ref not in turned and len({k for _, k in some}) == 1:
                continue  # one loop alone touches it, and keeps its order
            if not any(all(indices_of(e)[n] is k for e, k in some) for n in range(len(indices_of(some[0][0])))):
                return False
        return True


def _is_fusible(eqn: Eqn, nests: bool) -> bool:
    """Returns whether an equation is a loop of plain operations; with `nests` also if it holds such loops."""
    if not _is_counted(eqn):
        return False
    every = list(walk_inside(eqn))
    if any(is_local(ref) and ref_type(ref).size > LARGE for ref in touched(every)):
        return False
    return all(
        nests and _is_counted(e) if e.blocks else not e.primitive.effects or e.primitive in _PLAIN for e in every
    )


def _moves(body: Block) -> bool:
    """Returns whether the trips of a loop without results do little besides loads and stores."""
    others = [e for e in body.eqns if not e.primitive.is_access]
    return not any(e.blocks for e in others) and sum(e.primitive.cost for e in others) <= LIGHT


def _combines(body: Block) -> bool:
    """Returns whether a loop carries sums, products and extremes, which each trip reads once."""
    made = {v: e for e in body.eqns for v in e.outvars}
    read = [a for e in body.eqns for a in e.invars] + list(body.results)
    for carry, result in zip(body.params[1:], body.results, strict=True):
        last = made.get(result) if isinstance(result, Var) else None
        if last is None or not _goes_on(carry, result, last):
            return False
        if read.count(carry) != 1 or read.count(result) != 1:
            return False
    return True


def _goes_on(carry: Var, result: Atom, last: Eqn) -> bool:
    """Returns whether an equation combines a carried value with another one, or is a loop that carries it on."""
    if last.primitive is FOR:
        return last.initials[last.outvars.index(result)] is carry
    return last.primitive in _COMBINING and carry in last.invars


def _is_counted(eqn: Eqn) -> bool:
    """Returns whether an equation is a loop of known trips that nobody wants unrolled."""
    return eqn.primitive is FOR and not eqn.params.get("unroll") and loop_values(*eqn.bounds) is not None


def _is_reversed(one: Progression, other: Progression) -> bool:
    """Returns whether two progressions have the same numbers in opposite orders."""
    last = one.start + one.step * (one.count - 1)
    return (other.start, other.step, other.count) == (last, -one.step, one.count)


def _filled(fill: Eqn, loop: Eqn) -> Eqn:
    """Returns a loop whose trips begin with the stores of a loop that carries nothing."""
    body = loop.blocks[0]
    stores = Rebuilder({fill.index: loop.index}).rebuild_block(fill.blocks[0]).eqns
    return loop.rebuilt(loop.invars, (body.rebuilt((*stores, *body.eqns)),), loop.outvars)


def _joined(one: Eqn, other: Eqn) -> Eqn:
    """Returns the loop whose trips are those of two loops, one behind the other."""
    first = one.blocks[0]
    env: dict[Var, Atom] = {other.index: one.index}
    second = Rebuilder(env).rebuild_block(other.blocks[0])
    body = Block((*first.params, *second.params[1:]), (*first.eqns, *second.eqns), (*first.results, *second.results))
    operands = (*one.control, *one.initials, *other.initials)
    return Eqn(FOR, operands, (*one.outvars, *other.outvars), one.params, (body,), one.loc)
