"""First accumulations: one accumulation into each element that still has its initial value becomes a store.

Before:  buffer b: ref[f32,4] = 0.0:f32         After:  buffer b: ref[f32,4]
         range_for i in 0:i32 : 4:i32                   range_for i in 0:i32 : 4:i32
           a: f32 = load x i                              a: f32 = load x i
           accum[op=add] b a i                            c: f32 = add 0.0:f32 a
                                                          store b c i

Adjoints begin so: the clear and the load of what was cleared are two of five passes over memory. The task must be the
first that uses the buffer, its accumulations all that it does there, in no loop and no branch, and together exactly as
many as the buffer has elements; as they reach all of them (`analysis/index/definite_stores`), each is reached once.
After `fills`, which makes initial contents of tasks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import filled_by
from qdtrace.analysis.index.trips import task_values
from qdtrace.ir.builder import Builder
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import ref_type
from qdtrace.ir.walk import walk_task
from qdtrace.passes.base import ContentPass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.ir.program import Literal, Task, Var


@dataclass(frozen=True)
class FirstAccumulations(ContentPass):
    """Turns accumulations into untouched buffers into stores."""

    name: ClassVar[str] = "first_accumulations"

    def on_first_use(self, task: Task, met: Mapping[Var, Literal]) -> tuple[Task, Collection[Var]]:
        """Returns the task with stores in place of first accumulations, and the buffers that they fill."""
        accums = Counter(reference(e) for e in task.body.eqns if e.primitive is ACCUM and e.invars[0] in met)
        if not accums:
            return task, ()
        values = task_values(task)
        uses = Counter(a for e in walk_task(task) for a in e.invars if a in accums)
        alone = {r for r, n in accums.items() if uses[r] == n and values and values.count * n == ref_type(r).size}
        chosen = alone & filled_by(task, by=ACCUM) if alone else alone
        if not chosen:
            return task, ()
        builder = Builder()
        with builder.block() as body:
            for eqn in task.body.eqns:
                if eqn.invars and eqn.invars[0] in chosen:
                    builder.loc = eqn.loc
                    ref, (value,) = reference(eqn), values_of(eqn)
                    operation = combining(eqn.params["op"], ref.dtype)
                    builder.store(ref, builder(operation, met[ref], value), *indices_of(eqn))
                else:
                    builder.append(eqn)
        return replace(task, body=body.close()), chosen
