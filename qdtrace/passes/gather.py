"""Gather: accumulations at fixed offsets become loops over the elements, which gather what reaches them.

Before:  range_for i in 1:i32 : 7:i32            After:  range_for p in 0:i32 : 8:i32
           a: f32 = load x i                               b: bool = ge p 2:i32
           j: i32 = add i -1:i32                           t: f32 = if b
           k: i32 = add i 1:i32                              l: i32 = add p -1:i32
           accum[op=add] y a j                               a: f32 = load x l
           accum[op=add] y a k                               yield a
                                                           ...
                                                           accum[op=add] y t p

The adjoint of a stencil is such a task. Threads that scatter need atomic updates or copies of the array; one that
gathers writes each element once. The task computes a value again for each element that it reaches, so this is done
where that costs less. The inner elements, which every piece of `analysis/scattered` reaches, have a task of their own
without tests. What else the task does stays behind in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.cost import operations
from qdtrace.analysis.machine import CPU
from qdtrace.analysis.memory import TaskMemory
from qdtrace.analysis.scattered import reads_before_writes, scattering
from qdtrace.ir.memory import values_of
from qdtrace.ir.primitives import LOAD, Effect
from qdtrace.ir.program import is_local, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import task_refs, walk_all, walk_task
from qdtrace.passes.base import Pass
from qdtrace.passes.gather_task import Gather

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.analysis.machine import Machine
    from qdtrace.analysis.scattered import Scatter, ScatteringTask
    from qdtrace.ir.program import Eqn, Literal, Program, Task, Var
    from qdtrace.passes.gather_task import Where

SCATTER_COST = 24
"""Operations that the accumulation into an element of all threads costs more than one into an element of its own."""
PEELED = 1 << 14
"""Least number of elements whose inner ones have a task of their own."""


@dataclass(frozen=True)
class GatherScatters(Pass):
    """Makes loops over elements of accumulations at fixed offsets."""

    name: ClassVar[str] = "gather"
    machine: Machine = CPU

    def __call__(self, program: Program) -> Program:
        """Returns the program with tasks that gather, or the same object if nothing changed."""
        tasks: list[Task] = []
        fresh = dict(program.initial)
        left = dict(program.initial)
        for task in program.tasks:
            for made in self._gathered(task, fresh, left):
                tasks.append(made)
            for ref in task_refs(task):
                fresh.pop(ref, None)
        made = program.rebuilt(tasks)
        return made if len(left) == len(program.initial) else replace(made, initial=left)

    def _gathered(self, task: Task, fresh: dict[Var, Literal], left: dict[Var, Literal]) -> list[Task]:
        """Returns the tasks that a task becomes; removes the contents that they store from `left`."""
        found = scattering(task)
        if found is None:
            return [task]
        memory = TaskMemory(task)
        scatters = [s for ref in found.sites if not memory.is_private(ref) and (s := self._scatter(found, ref))]
        tasks: list[Task] = []
        chosen: set[Var] = set()
        for scatter in scatters:
            initial = {r: v for r, v in fresh.items() if r is scatter.ref}
            gathers = [
                Gather(found, where).task([scatter], initial, f"{task.name}_{name}")
                for where, name in self._boxes(scatter)
            ]
            if _pays(gathers[0], task, scatter):
                tasks += gathers
                chosen.add(scatter.ref)
                for ref in initial:
                    del left[ref]
        if not chosen:
            return [task]
        rest = _Without(chosen).rebuild_task(task)
        return [*tasks, rest] if any(map(_acts, walk_task(rest))) else tasks

    def _scatter(self, found: ScatteringTask, ref: Var) -> Scatter | None:
        """Returns the accumulations into a reference if their values can be computed before the task."""
        task, sites = found.task, found.sites[ref]
        wanted = [a for s in sites for a in (*values_of(s.eqn), *(e.invars[0] for e, _ in s.around))]
        needed = found.needed(wanted)
        eqns = [e for e in walk_all(task.body.eqns) if not needed.isdisjoint(e.outvars)]
        inside = [e for eqn in eqns for e in walk_all([eqn])]
        if any(e.primitive.effects and e.primitive is not LOAD and not e.primitive.writes for e in inside):
            return None
        loads = [e for e in inside if e.primitive is LOAD]
        if any(is_local(e.invars[0]) or e.invars[0] is ref for e in loads):
            return None
        if any(e.primitive is LOAD and e.invars[0] is ref for e in task.head) or not reads_before_writes(task, loads):
            return None
        scatter = found.scatters(ref)
        return None if scatter is None or len(scatter.component_axes) == ref_type(ref).ndim else scatter

    def _boxes(self, scatter: Scatter) -> Iterator[tuple[Where, str]]:
        """Yields the boxes of elements that together are all of a reference: the inner elements first."""
        shape = ref_type(scatter.ref).shape
        axes = [a for a in range(len(shape)) if a not in scatter.component_axes]
        whole = tuple(range(shape[a]) for a in axes)
        inner = tuple(_longest({0, shape[a], *_ends(scatter, a)}) for a in axes)
        if self.machine.platform != "cpu" or prod(map(len, whole)) < PEELED or inner == whole:
            yield whole, "gather"
            return
        yield inner, "gather"
        for k, (all_of, part) in enumerate(zip(whole, inner, strict=True)):
            for side in (range(all_of.start, part.start), range(part.stop, all_of.stop)):
                if side:
                    yield (*inner[:k], side, *whole[k + 1 :]), "border"


def _acts(eqn: Eqn) -> bool:
    return eqn.primitive.writes or Effect.CHECK in eqn.primitive.effects


def _ends(scatter: Scatter, axis: int) -> Iterator[int]:
    for piece in scatter.pieces:
        yield from (piece.targets[axis].start, piece.targets[axis].stop)


def _longest(ends: set[int]) -> range:
    """Returns the longest range between ends that follow each other."""
    ordered = sorted(ends)
    return max((range(a, b) for a, b in pairwise(ordered)), key=len)


def _pays(gather: Task, task: Task, scatter: Scatter) -> bool:
    sites = len({p.site for p in scatter.pieces})
    return operations(gather.body) <= operations(task.body) + SCATTER_COST * sites


class _Without(Rebuilder):
    """Rebuilds a task without its accumulations into some references."""

    def __init__(self, refs: set[Var]) -> None:
        super().__init__()
        self._refs = refs

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation that is kept."""
        if not (eqn.primitive.writes and eqn.invars[0] in self._refs):
            super().visit(eqn)
