"""First accumulations: one accumulation into each element that still has its initial value becomes a store.

Before:  buffer b: ref[f32,4] = 0.0:f32         After:  buffer b: ref[f32,4]
         range_for i in 0:i32 : 4:i32                   range_for i in 0:i32 : 4:i32
           a: f32 = load x i                              a: f32 = load x i
           accum[op=add] b a i                            c: f32 = add 0.0:f32 a
                                                          store b c i

Adjoints begin so: the clear and the load of what was cleared are two of five passes over memory. The task must be the
first that uses the buffer, its accumulations all that it does there, in no loop and no branch, and together exactly as
many as the buffer has elements; as they reach all of them (`analysis/index/definite_stores`), each is reached once.
After `clear_buffers`, which makes initial values of fills.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import filled_by
from qdtrace.analysis.index.trips import task_values
from qdtrace.ir.builder import Builder
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Var, ref_type
from qdtrace.ir.walk import task_refs, walk_task
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qdtrace.ir.program import Eqn, Literal, Program, Task


@dataclass(frozen=True)
class FirstAccumulations(Pass):
    """Turns accumulations into untouched buffers into stores."""

    name: ClassVar[str] = "first_accumulations"

    def __call__(self, program: Program) -> Program:
        """Returns the program with first accumulations made stores, or the same object if there is none."""
        untouched = dict(program.initial)
        initial = dict(program.initial)
        tasks: list[Task] = []
        for task in program.tasks:
            made, stored = _with_stores(task, untouched)
            tasks.append(made)
            for ref in task_refs(task):
                untouched.pop(ref, None)
            for ref in stored:
                del initial[ref]
        return (
            program if len(initial) == len(program.initial) else replace(program, tasks=tuple(tasks), initial=initial)
        )


def _with_stores(task: Task, untouched: Mapping[Var, Literal]) -> tuple[Task, set[Var]]:
    """Returns the task with stores in place of first accumulations, and the buffers that they fill."""
    values = task_values(task)
    accums = Counter(e.invars[0] for e in task.body.eqns if _is_accumulation(e, untouched))
    uses = Counter(a for e in walk_task(task) for a in e.invars if a in accums)
    alone = {ref for ref, count in accums.items() if uses[ref] == count}
    chosen = {r for r in alone if values is not None and values.count * accums[r] == ref_type(r).size}
    if not chosen:
        return task, set()
    builder = Builder()
    with builder.block() as body:
        for eqn in task.body.eqns:
            if eqn.invars and eqn.invars[0] in chosen:
                builder.loc = eqn.loc
                ref, (value,) = eqn.invars[0], values_of(eqn)
                assert isinstance(ref, Var)
                operation = combining(eqn.params["op"], ref.dtype)
                builder.store(ref, builder(operation, untouched[ref], value), *indices_of(eqn))
            else:
                builder.append(eqn)
    made = replace(task, body=body.close())
    stored = {r for r in chosen if isinstance(r, Var)} & filled_by(made)
    if len(stored) == len(chosen):
        return made, stored
    return _with_stores(task, {r: v for r, v in untouched.items() if r in stored}) if stored else (task, set())


def _is_accumulation(eqn: Eqn, untouched: Mapping[Var, Literal]) -> bool:
    return eqn.primitive is ACCUM and eqn.invars[0] in untouched
