"""A task in blocks of iterations, as two tasks over the places of one block.

    range_for i in 0 : n             range_for k in 0 : 4096          look: the trip count of each iteration
      a = load first i                 i = add (load base) k
      b = load last i                  a = load first i
      for j in a : b : 1               b = load last i
        s = mul (load w j) i           t = sub b a
        store y s j                    store trips t k
                                     range_for k in 0 : 4096          rows: the iterations in an order
                                       i = add (load base) (load order k)
                                       a = load first i
                                       b = load last i
                                       for j in a : b : 1
                                         s = mul (load w j) i
                                         store y s j

`base` holds the first iteration of the block. Between the two tasks, `order` becomes a permutation of the places that
are looked at; a block with fewer iterations than places runs both tasks up to its last one. Equations of the original
task are in `rows` as they are, so what is known of them stays true.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from qdtrace.ir.builder import Builder, ref_var, scalar_var
from qdtrace.ir.primitives import ADD
from qdtrace.ir.program import Eqn, Var, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.simd.divergence.ordering import Ordering
    from qdtrace.ir.program import Atom, Task

BLOCK = 4096
"""Iterations that are sorted together: larger blocks would read memory further apart."""


class BlockMemory(NamedTuple):
    """The references through which the tasks of a block communicate."""

    base: Var
    trips: Var
    order: Var
    firsts: Var
    lasts: Var


def block_memory(task: Task, ordering: Ordering) -> BlockMemory:
    """Returns references for the blocks of a task."""
    kind = ordering.first.dtype
    kept = (("trips", DType.i32), ("order", DType.i32), ("firsts", kind), ("lasts", kind))
    return BlockMemory(ref_var(_index(task).dtype, (), "base"), *(ref_var(d, (BLOCK,), name) for name, d in kept))


def look_task(task: Task, ordering: Ordering, memory: BlockMemory) -> Task:
    """Returns the task that stores `last - first` and both values for each iteration of a block."""
    builder, place = Builder(), scalar_var(_index(task).dtype, "k")
    _bind(builder, task, memory, place)
    for eqn in ordering.before:
        builder.append(eqn)
    trips = builder.convert(builder("sub", ordering.last, ordering.first), DType.i32)
    for ref, value in ((memory.trips, trips), (memory.firsts, ordering.first), (memory.lasts, ordering.last)):
        builder.store(ref, value, place)
    return _over_block(task, place, builder)


def rows_task(task: Task, memory: BlockMemory) -> Task:
    """Returns the task that runs a block's iterations in the order that is stored."""
    builder, place = Builder(), scalar_var(_index(task).dtype, "k")
    _bind(builder, task, memory, builder.convert(builder.load(memory.order, place), place.dtype))
    for eqn in task.body.eqns:
        builder.append(eqn)
    return _over_block(task, place, builder)


def _index(task: Task) -> Var:
    assert task.index is not None
    return task.index


def _bind(builder: Builder, task: Task, memory: BlockMemory, place: Atom) -> None:
    """Binds the index of the original task to the iteration at a place of the block."""
    builder.append(Eqn(ADD, (builder.load(memory.base), place), (_index(task),)))


def _over_block(task: Task, place: Var, builder: Builder) -> Task:
    bounds = literal(0, place.dtype), literal(BLOCK, place.dtype)
    return task.rebuilt(builder.current.close(), None, *bounds, place)
