"""Fills: a task that only stores constants all over buffers that nothing used before becomes their initial value.

Before:  buffer b: ref[f32,4x8]                 After:  buffer b: ref[f32,4x8] = 0.0:f32
         range_for i in 0:i32 : 32:i32                  range_for i in 0:i32 : 4:i32
           r: i32 = rem i 8:i32                           a: f32 = load x i
           q: i32 = div i 8:i32                           accum[op=add] b a i 0:i32
           store b 0.0:f32 q r
         range_for j in 0:i32 : 4:i32
           a: f32 = load x j
           accum[op=add] b a j 0:i32

A clear needs no launch, and a program that is only `zeros` needs no code at all. If the first task after it stores
every element and reads none (`analysis/index`), there is no clear. It is one of the last passes, as others can use
the constant itself.

The task may have nested loops and several stores, but its bounds are constants and nothing else happens in it: no
load, no condition. One buffer gets one value. Parameters have a content already, and a buffer that an earlier task uses
is not the same memory before it; such tasks stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.index.definite_stores import fill_of, filled_by
from qdtrace.ir.walk import task_refs, walk_task
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from qdtrace.ir.program import Program, Task, Var


@dataclass(frozen=True)
class ClearBuffers(Pass):
    """Turns fills into initial values."""

    name: ClassVar[str] = "clear_buffers"

    def __call__(self, program: Program) -> Program:
        """Returns the program without tasks that only fill buffers which nothing used before."""
        fills = [fill_of(task) for task in program.tasks]
        if not any(fills) and not program.initial:
            return program
        fresh = set(program.buffers)
        initial = dict(program.initial)
        kept: list[Task] = []
        for task, fill in zip(program.tasks, fills, strict=True):
            if fill is not None and fill.keys() <= fresh:
                initial.update(fill)  # a later fill of what is still unused wins
            else:
                kept.append(task)
                fresh.difference_update(task_refs(task))
        initial = {ref: value for ref, value in initial.items() if not _is_overwritten(ref, kept)}
        if len(kept) == len(program.tasks) and len(initial) == len(program.initial):
            return program
        return replace(program, tasks=tuple(kept), initial=initial)


def _is_overwritten(ref: Var, tasks: Iterable[Task]) -> bool:
    """Returns whether the first task that uses a reference only stores to it, and stores every element."""
    for task in tasks:
        if ref in task_refs(task):
            used = [e.primitive.name for e in walk_task(task) if e.invars and e.invars[0] is ref]
            return set(used) == {"store"} and ref in filled_by(task)
    return False
