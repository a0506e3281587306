"""First stores: the first task that uses a buffer stores its initial content, if each iteration uses its own elements.

Before:  buffer b: ref[f32,4] = 0.0:f32         After:  buffer b: ref[f32,4]
         range_for i in 0:i32 : 4:i32                   range_for i in 0:i32 : 4:i32
           a: f32 = load x i                              store b 0.0:f32 i
           if c                                           a: f32 = load x i
             store b a i                                  if c
                                                            store b a i

The memory pass then forwards the content to loads and accumulations, and the buffer is written once. The range must
have an iteration for each element, or for each row of few elements, and no iteration may touch an element that another
one stores. What stays initial is cleared by the runtime.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.trips import task_values
from qdtrace.analysis.memory import TaskMemory
from qdtrace.frozen import frozen
from qdtrace.ir.builder import Builder, nest, unravel
from qdtrace.ir.program import Block, ref_type
from qdtrace.passes.contents import ContentPass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.ir.program import Eqn, Literal, Task, Var

ROW_LIMIT = 16
"""Largest number of elements of a row that one iteration stores."""


@frozen
class FirstStores(ContentPass):
    """Makes the first task that uses a buffer store its initial content."""

    name: ClassVar[str] = "first_stores"

    def on_first_use(self, task: Task, met: Mapping[Var, Literal]) -> tuple[Task, Collection[Var]]:
        """Returns the task with stores of contents in front, and the buffers whose contents it stores."""
        memory = TaskMemory(task)
        refs = memory.shared.keys() - memory.head_reads
        found = {ref: _stores_of(ref, value, task) for ref, value in met.items() if ref in refs}
        stored = {ref: eqns for ref, eqns in found.items() if eqns and _are_apart(ref, eqns, memory)}
        front = [eqn for eqns in stored.values() for eqn in eqns]
        return task.rebuilt(Block((), (*front, *task.body.eqns))) if stored else task, stored


def _stores_of(ref: Var, value: Literal, task: Task) -> tuple[Eqn, ...]:
    """Returns the stores of an initial content that all iterations together need, none if the range does not fit."""
    index, iterations = task.index, task_values(task)
    if index is None or iterations is None or iterations.start:
        return ()
    count, kind, builder = iterations.count, ref_type(ref), Builder()
    builder.loc = task.loc
    if kind.shape and count == kind.shape[0] and kind.size <= ROW_LIMIT * count:
        nest(builder, kind.shape[1:], lambda at: builder.store(ref, value, index, *at), unroll=ROW_LIMIT)
    elif count == kind.size:
        builder.store(ref, value, *unravel(builder, index, kind.shape))
    return tuple(builder.current.eqns)


def _are_apart(ref: Var, stores: tuple[Eqn, ...], memory: TaskMemory) -> bool:
    """Returns whether no iteration of the task touches an element that another one stores in front."""
    front = TaskMemory(replace(memory.task, body=Block((), stores)))
    return all(front.dependence(s, e, memory).is_safe for s in front.shared[ref] for e in memory.shared[ref])
