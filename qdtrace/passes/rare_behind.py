"""Rare blocks behind loops: a loop runs without its rare blocks, and once more with them if one of them had work.

Before:  y: f32 = for k in 0:i32 : n : 1:i32 carry c = x    After:  y: f32, m: f32 = for k in 0:i32 : n : 1:i32
           d: f32 = mul c s                                                  carry c = x, a = -inf:f32
           p: bool = gt d limit                                        d: f32 = mul c s
           if p                                                        q: bool = gt d a
             if[rare=true] ...                                         b: f32 = select q d a
           yield d                                                     yield d, b
                                                                     h: bool = gt m limit
                                                                     if[rare=true] h
                                                                       (the loop as it was)

A print under a condition in an inner loop tests in each step if any lane prints. If the loop changes no memory but that
of its records, it may run twice, so its steps only have to find out if one of them would print. For a comparison with
an invariant of the loop the largest or the smallest value tells that, which is one operation of a vector; for a test
for NaN or infinity the sum does, perhaps without need (two infinities, or an overflow); for other conditions a bool is
carried. Of nested loops the outermost one that may run twice is changed.

Code that only such a branch needs is moved into it (`sunk`), so other iterations do not execute it.

Only tasks with rare blocks change. Measured on the CPU, 64 multiply-adds in a loop with a print that never happens: 3.1
of the time without the print before, 1.12 after (`docs/design/0025-printing.md`).
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, ClassVar

from qdtrace.frozen import frozen
from qdtrace.ir.carries import Carry, carries_of, with_carries
from qdtrace.ir.combining import identity
from qdtrace.ir.memory import written
from qdtrace.ir.primitives import AND, CELL, GE, GT, IF, IS_FINITE, LE, LT, NE, NOT, OR, WHILE, Effect, primitive
from qdtrace.ir.program import Block, Eqn, Literal, Var, literal
from qdtrace.ir.rebuild import Copier, Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block, is_rare, used_in_block, walk_eqns, walk_inside, walk_often
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Program, Task

_NOTHING = Block((), (), ())
_SUMMED = (DType.f32, DType.f64)
"""Dtypes whose sums rarely overflow."""


@frozen
class RareBehind(TaskPass):
    """Moves rare blocks out of loops that may run twice."""

    name: ClassVar[str] = "rare_behind"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(map(is_rare, walk_eqns(task.body))):
            return task
        body = _Mover().rebuild_block(task.body)
        return task.rebuilt(sunk(body, frozenset(written(walk_eqns(body)))))


class _Mover(Rebuilder):
    """Rebuilds a task; of nested loops it changes the outermost one that may run twice."""

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or a loop without its rare blocks and a branch that runs it once more with them."""
        if is_rare(eqn):
            self.append(eqn)
            return
        if not (eqn.primitive.loops and any(map(is_rare, walk_inside(eqn))) and _may_run_twice(eqn)):
            super().visit(eqn)
            return
        hits = _Stripper(self).loop(eqn)
        again = Block((), Copier().rebuild_eqns((eqn,)), ())
        self.append(Eqn(IF, (_any(self, hits),), (), {"rare": True}, (again, _NOTHING), eqn.loc))


def _may_run_twice(loop: Eqn) -> bool:
    """Returns whether a loop only writes memory of its own, or in rare blocks memory that the rest never reads."""
    made = {v for e in walk_inside(loop) if e.primitive is CELL for v in e.outvars}
    apart: set[Atom] = set()
    read: set[Atom] = set()
    waiting = [e for block in loop.blocks for e in block.eqns]
    if loop.primitive is WHILE and any(map(is_rare, walk_eqns(loop.blocks[0]))):
        return False
    while waiting:
        eqn = waiting.pop()
        if _only_tells(eqn):
            if is_rare(eqn):
                return False  # in each step: there is nothing to be found out
            apart.update(written(walk_inside(eqn)))
            continue
        effects = eqn.primitive.effects
        if Effect.LANES in effects or (eqn.primitive.writes and eqn.invars[0] not in made):
            return False
        if Effect.READ in effects:
            read.add(eqn.invars[0])
        if eqn.primitive is WHILE and any(map(is_rare, walk_eqns(eqn.blocks[0]))):
            return False
        waiting += [e for block in eqn.blocks for e in block.eqns]
    return apart.isdisjoint(read)


def _only_tells(eqn: Eqn) -> bool:
    """Returns whether an equation is a branch that has no effect if its rare blocks do not run."""
    if eqn.primitive is not IF or eqn.outvars:
        return False
    often = (e for block in eqn.blocks for e in walk_often(block))
    return is_rare(eqn) or (any(map(is_rare, walk_inside(eqn))) and all(map(_leaves_nothing, often)))


def _leaves_nothing(eqn: Eqn) -> bool:
    return not eqn.primitive.loops and not eqn.primitive.effects - {Effect.READ, Effect.CHECK}


class _Stripper:
    """Emits a loop without its rare blocks, and code that finds out if one of them had work."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def loop(self, loop: Eqn) -> list[Atom]:
        """Appends a loop without rare blocks; returns conditions of which one holds if a step had work for them."""
        body = loop.blocks[-1]
        with self.b.block(body.params) as opened:
            hits = self.eqns(body.eqns)
            bound = set(bound_in_block(Block(body.params, tuple(opened.eqns), ())))
            made = {v: e for e in opened.eqns for v in e.outvars}
            self.b.loc = loop.loc
            found = [_Finder(self.b, bound, made, len(loop.blocks)) for _ in hits]
            later = [finder.watch(hit) for finder, hit in zip(found, hits, strict=True)]
        block = Block(body.params, tuple(opened.eqns), body.results)
        stripped = loop.rebuilt(loop.invars, (*loop.blocks[:-1], block), loop.outvars)
        carries = [c for finder in found for c in finder.carries]
        self.b.append(with_carries(stripped, [*carries_of(stripped), *carries]))
        return [told(self.b) for told in later]

    def eqns(self, eqns: Sequence[Eqn]) -> list[Atom]:
        """Appends equations without their rare blocks, and returns the conditions of those blocks."""
        hits: list[Atom] = []
        for eqn in eqns:
            if not any(map(is_rare, (eqn, *walk_inside(eqn)))):
                self.b.append(eqn)
            elif _only_tells(eqn):
                for block, negate in zip(eqn.blocks, (False, True), strict=True):
                    if any(map(is_rare, walk_eqns(block))):
                        hits.append(self.b("not", eqn.invars[0]) if negate else eqn.invars[0])
            elif eqn.primitive.loops:
                hits += self.loop(eqn)
            else:
                hits.append(self._branch(eqn))
        return hits

    def _branch(self, eqn: Eqn) -> Atom:
        """Appends a branch without its rare blocks, and returns a result of it that says if one of them had work."""
        blocks: list[Block] = []
        for block in eqn.blocks:
            with self.b.block() as opened:
                inner = self.eqns(block.eqns)
                hit = _any(self.b, inner) if inner else literal(False, DType.bool)
            blocks.append(Block((), tuple(opened.eqns), (*block.results, hit)))
        told = Var(literal(False, DType.bool).type, "told")
        self.b.append(Eqn(IF, eqn.invars, (*eqn.outvars, told), eqn.params, tuple(blocks), eqn.loc))
        return told


class _Finder:
    """Adds carries to a loop that tell after it if a condition held in one of its steps."""

    def __init__(self, builder: Builder, bound: set[Var], made: dict[Var, Eqn], blocks: int) -> None:
        self.b = builder
        self.bound = bound
        self.made = made
        self.blocks = blocks
        self.carries: list[Carry] = []

    def watch(self, condition: Atom) -> _Told:
        """Emits the watch of a condition into the body, and returns a function that emits the answer after the loop."""
        if self._is_fixed(condition):
            return lambda b: condition
        eqn = self.made.get(condition) if isinstance(condition, Var) else None
        return self._carried(condition) if eqn is None else self._of(eqn, condition)

    def _of(self, eqn: Eqn, condition: Atom) -> _Told:
        prim, operands = eqn.primitive, eqn.invars
        if prim is OR:
            one, other = map(self.watch, operands)
            return lambda b: b("or", one(b), other(b))
        if prim is AND and any(map(self._is_fixed, operands)):
            one, other = map(self.watch, operands)
            return lambda b: b("and", one(b), other(b))
        if prim in (LT, LE, GT, GE) and any(map(self._is_fixed, operands)) and operands[0].dtype is not DType.bool:
            test, (value, limit) = prim, operands
            if self._is_fixed(value):
                value, limit, test = limit, value, primitive(prim.mirror)
            most = self._extreme(value, "gt" if test in (GT, GE) else "lt")
            return lambda b: b(test.name, most, limit)
        if prim is NE and operands[0] is operands[1] and operands[0].dtype in _SUMMED:
            total = self._sum(operands[0])
            return lambda b: b("ne", total, total)
        if prim is NOT and (value := self._tested(operands[0])) is not None:
            total = self._sum(value)
            return lambda b: b("not", b("is_finite", total))
        return self._carried(condition)

    def _tested(self, condition: Atom) -> Atom | None:
        """Returns the operand of a condition that is `is_finite`, or None for other conditions."""
        eqn = self.made.get(condition) if isinstance(condition, Var) else None
        if eqn is None or eqn.primitive is not IS_FINITE or eqn.invars[0].dtype not in _SUMMED:
            return None
        return eqn.invars[0]

    def _carried(self, condition: Atom) -> _Told:
        held = self._carry(literal(False, DType.bool), lambda before: self.b("or", before, condition))
        return lambda b: held

    def _is_fixed(self, atom: Atom) -> bool:
        return isinstance(atom, Literal) or atom not in self.bound

    def _extreme(self, value: Atom, order: str) -> Var:
        """Returns a carry of the largest (`gt`) or smallest (`lt`) value of all steps, without NaNs."""
        name = "max" if order == "gt" else "min"
        first = identity(name, value.dtype)
        if value.dtype.is_float:
            return self._carry(first, lambda before: self.b("select", self.b(order, value, before), value, before))
        return self._carry(first, lambda before: self.b(name, before, value))

    def _sum(self, value: Atom) -> Var:
        """Returns a carry of the sum over all steps: NaN if a value is, and not finite if one is not."""
        return self._carry(literal(0.0, value.dtype), lambda before: self.b("add", before, value))

    def _carry(self, initial: Atom, step: _Step) -> Var:
        params = tuple(Var(initial.type, "seen") for _ in range(self.blocks))
        outvar = Var(initial.type, "seen")
        self.carries.append(Carry(outvar, (step(params[-1]),), params, initial))
        return outvar


def _any(b: Builder, conditions: Sequence[Atom]) -> Atom:
    return reduce(lambda one, other: b("or", one, other), conditions)


def sunk(block: Block, written: frozenset[Atom]) -> Block:
    """Returns the block with equations that only a branch for rare blocks uses moved into it, at every depth.

    `written` is the memory that the task changes: loads of it stay.
    """
    users: Counter[Atom] = Counter(used_in_block(block))
    eqns: list[Eqn] = []
    moved: dict[Eqn, list[Eqn]] = {}
    inside: dict[Eqn, Counter[Atom]] = {}
    for eqn in reversed(block.eqns):
        if _only_tells(eqn):
            inside[eqn] = Counter(used_in_block(eqn.blocks[0]))
            moved[eqn] = []
        elif not eqn.blocks and _may_sink(eqn, written):
            at = next((e for e, uses in inside.items() if all(uses[v] == users[v] for v in eqn.outvars)), None)
            if at is not None and any(users[v] for v in eqn.outvars):
                moved[at].append(eqn)
                inside[at].update(v for v in eqn.invars if isinstance(v, Var))
                continue
        eqns.append(eqn)
    made: list[Eqn] = []
    for eqn in reversed(eqns):
        if into := moved.get(eqn, ()):
            first, *others = eqn.blocks
            taken = first.rebuilt((*reversed(into), *first.eqns), first.results, first.params)
            made.append(eqn.rebuilt(eqn.invars, (taken, *others), eqn.outvars))
        elif eqn.blocks and eqn not in moved:
            made.append(eqn.rebuilt(eqn.invars, tuple(sunk(b, written) for b in eqn.blocks), eqn.outvars))
        else:
            made.append(eqn)
    return block.rebuilt(tuple(made), block.results, block.params)


def _may_sink(eqn: Eqn, written: frozenset[Atom]) -> bool:
    effects = eqn.primitive.effects
    return not effects or (effects == frozenset({Effect.READ}) and eqn.invars[0] not in written)


if TYPE_CHECKING:
    from collections.abc import Callable

    _Told = Callable[[Builder], Atom]
    _Step = Callable[[Atom], Atom]
