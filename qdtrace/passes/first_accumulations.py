"""First accumulations: one accumulation into each element that still has its initial value becomes a store.

Before:  buffer b: ref[f32,4] = 0.0:f32         After:  buffer b: ref[f32,4]
         range_for i in 0:i32 : 4:i32                   range_for i in 0:i32 : 4:i32
           a: f32 = load x i                              a: f32 = load x i
           accum[op=add] b a i                            c: f32 = add 0.0:f32 a
                                                          store b c i

Adjoints begin so: the clear and the load of what was cleared are two of five passes over memory. The task must be the
first that uses the buffer, and its accumulations, in no branch, together exactly as many as the buffer has elements; as
they reach all of them (`analysis/index/definite_stores`), each is reached once. They are all that the task does there;
or it is the first of several accesses, and no iteration touches an element of another one. After `fills`, which makes
initial contents of tasks.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import fills
from qdtrace.analysis.index.trips import task_values, trip_count
from qdtrace.analysis.memory import TaskMemory
from qdtrace.frozen import frozen
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import ACCUM, FOR
from qdtrace.ir.program import ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_eqns, walk_nested
from qdtrace.passes.contents import ContentPass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.ir.program import Eqn, Literal, Task, Var


@frozen
class FirstAccumulations(ContentPass):
    """Turns accumulations into untouched buffers into stores."""

    name: ClassVar[str] = "first_accumulations"

    def on_first_use(self, task: Task, met: Mapping[Var, Literal]) -> tuple[Task, Collection[Var]]:
        """Returns the task with stores in place of first accumulations, and the buffers that they fill."""
        values = task_values(task)
        refs = {reference(e) for e in walk_eqns(task.body) if e.primitive is ACCUM and e.invars[0] in met}
        if values is None or not refs:
            return task, ()
        memory, around = TaskMemory(task), dict(walk_nested(task.body))
        found = {e for ref in refs - memory.head_reads for e in _first(ref, memory, around, values.count)}
        if not found:
            return task, ()
        return _Storing(found, met).rebuild_task(task), {reference(e) for e in found}


def _first(ref: Var, memory: TaskMemory, around: Mapping[Eqn, tuple[Eqn, ...]], iterations: int) -> list[Eqn]:
    """Returns accumulations of a task that reach each element of a buffer once and first, none if there are none.

    `around` has the loops and branches around each equation.
    """
    accesses = memory.accesses[ref]
    for some in (accesses, accesses[:1]):
        if any(e.primitive is not ACCUM for e in some):
            continue
        trips = [prod(trip_count(*e.bounds) or 0 if e.primitive is FOR else 0 for e in around[a]) for a in some]
        if 0 in trips or iterations * sum(trips) != ref_type(ref).size or not fills(memory.task, some):
            continue
        loops = around[some[0]]
        if some is accesses or (memory.is_private(ref) and all(memory.is_apart(ref, loop) for loop in loops)):
            return some
    return []


class _Storing(Rebuilder):
    """Rebuilds a task with stores in place of some accumulations."""

    def __init__(self, found: Collection[Eqn], initial: Mapping[Var, Literal]) -> None:
        super().__init__()
        self.found = found
        self.initial = initial

    def visit(self, eqn: Eqn) -> None:
        """Emits an equation, or the store that it becomes."""
        if eqn not in self.found:
            super().visit(eqn)
            return
        self.loc, ref = eqn.loc, reference(eqn)
        (value,), indices = self.atoms(values_of(eqn)), self.atoms(indices_of(eqn))
        made = self(combining(eqn.params["op"], ref.dtype), self.initial[ref], value)
        self.store(ref, made, *indices)
