"""Loads in place of values that an earlier loop computed and stored.

Before:  for k in 0:i32 : 64:i32 : 1:i32       After:  for k in 0:i32 : 64:i32 : 1:i32
           v: f32 = load x k                             v: f32 = load x k
           e: f32 = exp v                                e: f32 = exp v
           store a e k                                   store a e k
         for t in 63:i32 : -1:i32 : -1:i32             for t in 63:i32 : -1:i32 : -1:i32
           w: f32 = load x t                             f: f32 = load a t
           f: f32 = exp w                                accum[op=add] g f
           accum[op=add] g f

Reverse mode runs an iteration again from its state, though its values may still be in a private array. Applies where
both loops have constant bounds and a step of 1 or -1, the store is the only write to the array from there on, both
expressions read the same memory, which nothing writes in between, and a load is cheaper. Not on GPUs, whose private
arrays are far.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.expressions import Expressions
from qdtrace.analysis.index.trips import loop_values
from qdtrace.analysis.machine import CPU
from qdtrace.frozen import frozen
from qdtrace.ir.dataflow import slice_of
from qdtrace.ir.memory import indices_of, reference, values_of, written
from qdtrace.ir.primitives import FOR, LOAD, STORE
from qdtrace.ir.program import Eqn, Var, is_local
from qdtrace.ir.walk import walk_all, walk_eqns, walk_inside
from qdtrace.passes.base import TaskPass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.analysis.machine import Machine
    from qdtrace.ir.program import Block, Program, Task

LEAST_COST = 12
"""Cost of an expression from which on a load is cheaper, also where it reaches the next cache: a function's."""


@frozen
class Reloads(TaskPass):
    """Loads values that an earlier loop of the same block computed and stored."""

    name: ClassVar[str] = "reloads"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        """Returns the task with loads in place of expressions, or the same object."""
        if self.machine.platform != "cpu" or sum(e.primitive is FOR for e in walk_eqns(task.body)) < 2:
            return task
        changed = {r for r in written(walk_eqns(task.body)) if not is_local(r)}
        return task.rebuilt(_in_block(task.body, changed))


@frozen(eq=False)
class _Stored:
    """A value that each trip of a loop computed and stored at its index."""

    loop: _Loop
    array: Var
    number: int
    reads: frozenset[Var]
    """References that its expression loads."""


class _Loop:
    """A `for` with constant bounds and a step of 1 or -1."""

    def __init__(self, eqn: Eqn, first: int, last: int) -> None:
        (self.block,) = eqn.blocks
        self.index = self.block.params[0]
        self.first, self.last = first, last
        self.made = {v: e for e in self.block.eqns for v in e.outvars}
        self.written = Counter(written(walk_inside(eqn)))

    def stored(self, changed: Collection[Var], expressions: Expressions) -> list[_Stored]:
        """Returns the values that it stores, computed of memory that is not in `changed` and not its own."""
        found: list[_Stored] = []
        for eqn in self.block.eqns:
            if eqn.primitive is not STORE or not is_local(reference(eqn)) or indices_of(eqn) != (self.index,):
                continue
            ((value,), array) = values_of(eqn), reference(eqn)
            if self.written[array] > 1 or value not in self.made:
                continue
            made = slice_of(self.block.eqns, [value])
            reads = frozenset(reference(e) for e in made if e.primitive is LOAD)
            pure = all(e.primitive is LOAD or not (e.primitive.effects or e.blocks) for e in made)
            again = reads.isdisjoint(changed) and reads.isdisjoint(self.written)
            if pure and again and sum(e.primitive.cost for e in made) >= LEAST_COST:
                found.append(_Stored(self, array, expressions.number(value), reads))
        return found


def _in_block(block: Block, changed: Collection[Var]) -> Block:
    """Returns a block with loads in place of expressions; `changed` are the buffers that the task writes."""
    known: list[_Stored] = []
    eqns: list[Eqn] = []
    expressions = Expressions({})
    for eqn in block.eqns:
        after, loop = set(written(walk_all((eqn,)))), _loop(eqn)
        known = [s for s in known if s.array not in after and s.reads.isdisjoint(after)]
        if loop is None:
            eqns.append(eqn.rebuilt(blocks=tuple([_in_block(b, changed) for b in eqn.blocks])))
            continue
        expressions.call(loop.index, "index")
        expressions.made.update(loop.made)
        there = {s.number: s.array for s in known if s.loop.first <= loop.first and loop.last <= s.loop.last}
        body = [_reloaded(e, there, expressions, loop) for e in loop.block.eqns]
        eqns.append(eqn.rebuilt(blocks=(_in_block(loop.block.rebuilt(body), changed),)))
        known += loop.stored(changed, expressions)
    return block.rebuilt(eqns)


def _loop(eqn: Eqn) -> _Loop | None:
    values = loop_values(*eqn.bounds) if eqn.primitive is FOR else None
    if values is None or abs(values.step) != 1 or values.interval is None:
        return None
    return _Loop(eqn, *values.interval)


def _reloaded(eqn: Eqn, there: Mapping[int, Var], expressions: Expressions, loop: _Loop) -> Eqn:
    """Returns a load in place of an equation whose value is in one of the arrays `there`."""
    array = there.get(expressions.number(eqn.outvar)) if there and len(eqn.outvars) == 1 else None
    return eqn if array is None else Eqn(LOAD, (array, loop.index), eqn.outvars, {}, (), eqn.loc)
