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
from qdtrace.ir.combining import combining
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import LOAD, Effect
from qdtrace.ir.program import is_local, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import task_refs, walk_all, walk_task
from qdtrace.passes.base import Pass
from qdtrace.passes.gather_task import Gather

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

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
        scatters = [s for ref in found.sites if not memory.is_private(ref) and (s := found.scatters(ref))]
        chosen: dict[Where, list[Scatter]] = {}
        apart: dict[Var, Literal | None] = {}
        for scatter in scatters:
            if scatter.is_apart:
                apart[scatter.ref] = fresh.get(scatter.ref)
                if scatter.ref in fresh and scatter.is_all:
                    del left[scatter.ref]
                continue
            if len(scatter.component_axes) == ref_type(scatter.ref).ndim or not _may_move(found, scatter.ref):
                continue
            whole = _whole(scatter)
            if _pays(Gather(found, _inner([scatter], whole)).task([scatter], fresh), task, scatter):
                chosen.setdefault(whole, []).append(scatter)
                left.pop(scatter.ref, None)
        if not chosen and not apart:
            return [task]
        tasks = [
            Gather(found, where).task(scatters, fresh, f"{task.name}_{name}")
            for whole, scatters in chosen.items()
            for where, name in self._boxes(whole, scatters)
        ]
        rest = _Rest({s.ref for scatters in chosen.values() for s in scatters}, apart).rebuild_task(task)
        return [*tasks, rest] if any(map(_acts, walk_task(rest))) else tasks

    def _boxes(self, whole: Where, scatters: Sequence[Scatter]) -> Iterator[tuple[Where, str]]:
        """Yields boxes that together are all elements, the inner ones first, with words for their tasks."""
        inner = _inner(scatters, whole)
        if self.machine.platform != "cpu" or prod(map(len, whole)) < PEELED or inner == whole:
            yield whole, "gather"
            return
        yield inner, "gather"
        for k, (all_of, part) in enumerate(zip(whole, inner, strict=True)):
            for side in (range(all_of.start, part.start), range(part.stop, all_of.stop)):
                if side:
                    yield (*inner[:k], side, *whole[k + 1 :]), "border"


def _may_move(found: ScatteringTask, ref: Var) -> bool:
    """Returns whether what is accumulated into a reference can be computed before the task."""
    task, sites = found.task, found.sites[ref]
    wanted = [a for s in sites for a in (*values_of(s.eqn), *(e.invars[0] for e, _ in s.around))]
    needed = found.needed(wanted)
    eqns = [e for e in walk_all(task.body.eqns) if not needed.isdisjoint(e.outvars)]
    inside = [e for eqn in eqns for e in walk_all([eqn])]
    if any(e.primitive.effects and e.primitive is not LOAD and not e.primitive.writes for e in inside):
        return False
    loads = [e for e in inside if e.primitive is LOAD]
    if any(is_local(e.invars[0]) or e.invars[0] is ref for e in loads):
        return False
    if any(e.primitive is LOAD and e.invars[0] is ref for e in task.head):
        return False
    return reads_before_writes(task, loads)


def _acts(eqn: Eqn) -> bool:
    return eqn.primitive.writes or Effect.CHECK in eqn.primitive.effects


def _whole(scatter: Scatter) -> Where:
    """Returns all elements, along each axis that is not one of components."""
    return tuple(range(n) for axis, n in enumerate(ref_type(scatter.ref).shape) if axis not in scatter.component_axes)


def _inner(scatters: Sequence[Scatter], whole: Where) -> Where:
    """Returns the elements between ends of pieces, the longest range of them along each axis."""
    ends = [{r.start, r.stop} for r in whole]
    for scatter in scatters:
        axes = [a for a in range(ref_type(scatter.ref).ndim) if a not in scatter.component_axes]
        for piece in scatter.pieces:
            for found, axis in zip(ends, axes, strict=True):
                found |= {piece.targets[axis].start, piece.targets[axis].stop}
    return tuple(max((range(a, b) for a, b in pairwise(sorted(found))), key=len) for found in ends)


def _pays(gather: Task, task: Task, scatter: Scatter) -> bool:
    sites = len({p.site for p in scatter.pieces})
    return operations(gather.body) <= operations(task.body) + SCATTER_COST * sites


class _Rest(Rebuilder):
    """Rebuilds a task without its accumulations into some references, and with stores for those into others."""

    def __init__(self, gathered: Collection[Var], apart: Mapping[Var, Literal | None]) -> None:
        """`apart` are references each of whose elements one iteration reaches, with what they have in them."""
        super().__init__()
        self._gathered, self._apart = gathered, apart

    def visit(self, eqn: Eqn) -> None:
        """Appends what becomes of an equation."""
        if not eqn.primitive.writes or eqn.invars[0] not in {*self._gathered, *self._apart}:
            super().visit(eqn)
        elif eqn.invars[0] in self._apart:
            self.loc = eqn.loc
            ref, (value,), at = reference(eqn), self.atoms(values_of(eqn)), self.atoms(indices_of(eqn))
            before = self._apart[ref] or self.load(ref, *at)
            self.store(ref, self(combining(eqn.params["op"], ref.dtype), before, value), *at)
