"""Fills: a task that only stores constants all over buffers that nothing used before becomes their initial content.

Before:  buffer b: ref[f32,4x8]                 After:  buffer b: ref[f32,4x8] = 0.0:f32
         range_for i in 0:i32 : 32:i32                  range_for i in 0:i32 : 4:i32
           r: i32 = rem i 8:i32                           a: f32 = load x i
           q: i32 = div i 8:i32                           accum[op=add] b a i 0:i32
           store b 0.0:f32 q r
         range_for j in 0:i32 : 4:i32
           a: f32 = load x j
           accum[op=add] b a j 0:i32

A clear needs no launch, and a program that is only `zeros` needs no code at all. If the first task that uses a buffer
stores every element and reads none (`analysis/index`), the content is not seen and goes.

The task may have nested loops and several stores, but its bounds are constants and nothing else happens in it: no
load, no condition. One buffer gets one value. Parameters have a content already, and a buffer that an earlier task uses
is not the same memory before it; such tasks stay whole.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import fill_of, filled_by
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import STORE
from qdtrace.passes.contents import ContentPass

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from qdtrace.ir.program import Literal, Program, Task, Var


@frozen
class Fills(ContentPass):
    """Turns fills into initial contents."""

    name: ClassVar[str] = "fills"

    def __call__(self, program: Program) -> Program:
        """Returns the program without tasks that only fill buffers which nothing used before."""
        fresh, initial = set(program.buffers), dict(program.initial)
        kept: list[Task] = []
        for task in program.tasks:
            fill = fill_of(task)
            if fill is not None and fill.keys() <= fresh:
                initial.update(fill)  # a later fill of what is still unused wins
            else:
                kept.append(task)
                fresh.difference_update(task.refs)
        if len(kept) < len(program.tasks):
            program = replace(program, tasks=tuple(kept), initial=initial)
        return super().__call__(program)

    def on_first_use(self, task: Task, met: Mapping[Var, Literal]) -> tuple[Task, Collection[Var]]:
        """Returns the task and the buffers that it only stores to, every element of them."""
        seen = {e.invars[0] for e in task.all_eqns if e.invars and e.primitive is not STORE}
        stored = met.keys() - seen
        return task, stored & filled_by(task) if stored else ()
