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
gathers writes each element once. The task computes a value again for each element that it reaches, if that costs less;
else the old task keeps its values in an array, which is gathered from. The inner elements, which every piece of
`analysis/scattered` reaches, have a task of their own without tests. What else the task does stays behind it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product
from math import prod
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.cost import operations
from qdtrace.analysis.machine import CPU
from qdtrace.analysis.memory import TaskMemory
from qdtrace.analysis.scattered import reads_before_writes, scattering
from qdtrace.frozen import frozen
from qdtrace.ir.memory import values_of
from qdtrace.ir.primitives import ATOMIC, LOAD, Effect
from qdtrace.ir.program import is_local
from qdtrace.ir.walk import walk_all
from qdtrace.passes.base import Pass
from qdtrace.passes.gather_own import with_own_joined
from qdtrace.passes.gather_rest import Kept, Rest
from qdtrace.passes.gather_task import Gather

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qdtrace.analysis.machine import Machine
    from qdtrace.analysis.scattered import Scatter, ScatteringTask
    from qdtrace.ir.program import Eqn, Program, Task, Var
    from qdtrace.passes.gather_task import Where

SCATTER_COST = 24
"""Operations that the accumulation into an element of all threads costs more than one into an element of its own."""
PEELED = 1 << 14
"""Least number of elements whose inner ones have a task of their own."""
MOST_KEPT = 8
"""Largest number of arrays in which a task keeps values that are gathered."""


class _Program:
    """Contents and buffers of a program while its tasks are walked."""

    def __init__(self, program: Program) -> None:
        self.fresh = dict(program.initial)
        """Initial contents of the buffers that no task has used yet."""
        self.left = dict(program.initial)
        """Initial contents that tasks do not store."""
        self.arrays: list[Var] = []
        """Buffers that are new."""


@frozen
class GatherScatters(Pass):
    """Makes loops over elements of accumulations at fixed offsets."""

    name: ClassVar[str] = "gather"
    machine: Machine = CPU

    def __call__(self, program: Program) -> Program:
        """Returns the program with tasks that gather, or the same object if nothing changed."""
        state = _Program(program)
        tasks: list[Task] = []
        for task in program.tasks:
            tasks += self._gathered(task, state)
            for ref in task.refs:
                state.fresh.pop(ref, None)
        made = program.rebuilt(tasks)
        if made is program:
            return made
        return replace(made, initial=state.left, buffers=(*program.buffers, *state.arrays))

    def _gathered(self, task: Task, state: _Program) -> list[Task]:
        """Returns the tasks that a task becomes."""
        found = scattering(task)
        if found is None:
            return [task]
        found = with_own_joined(found)
        whole, task = task, found.task
        memory = TaskMemory(task)
        met = [ref for ref in found.sites if not memory.share_a_proof(memory.accesses[ref])]
        scatters = [s for ref in met if (s := found.scatters(ref))]
        apart = {s.ref: state.fresh.get(s.ref) for s in scatters if s.is_apart}
        moved: list[Scatter] = []
        later: list[Scatter] = []
        for scatter in scatters:
            if scatter.is_apart:
                if scatter.is_all and scatter.ref in state.fresh:
                    state.left.pop(scatter.ref, None)
            elif scatter.element_axes:
                if _may_move(found, scatter) and _pays(found, scatter):
                    moved.append(scatter)
                elif not any(p.guards for p in scatter.pieces):
                    later.append(scatter)
        kept = Kept(found, later)
        if len(kept.arrays) > MOST_KEPT:
            later, kept = [], Kept(found, ())
        if not moved and not apart and not later:
            return [whole]
        rest = Rest({s.ref for s in moved}, apart, kept).rebuild_task(task)
        loading = kept.loading() if later else found
        state.arrays += kept.arrays
        return [
            *self._tasks(found, moved, state),
            *([rest] if any(map(_acts, rest.all_eqns)) else []),
            *self._tasks(loading, [loading.scatters_again(old) for old in later], state),
        ]

    def _tasks(self, found: ScatteringTask, scatters: Sequence[Scatter], state: _Program) -> Iterator[Task]:
        """Yields the tasks that gather; those of one shape together."""
        shapes: dict[tuple[Where, tuple[int, ...]], list[Scatter]] = {}
        for scatter in scatters:
            shapes.setdefault((_whole(scatter), scatter.full), []).append(scatter)
        for (whole, _), together in shapes.items():
            fresh = {s.ref: state.fresh[s.ref] for s in together if s.is_all_there_is and s.ref in state.fresh}
            boxes = (b for box, name in self._boxes(whole, together) for b in _cut(box, name, together))
            for where, name in boxes:
                yield Gather(found, where, together[0].steps).task(together, fresh, f"{found.task.name}_{name}")
            for ref in fresh:  # of others, an earlier task or this one found the initial content
                state.left.pop(ref, None)

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


def _may_move(found: ScatteringTask, scatter: Scatter) -> bool:
    """Returns whether what is accumulated into a reference can be computed before the task."""
    ref, task, sites = scatter.ref, found.task, found.sites[scatter.ref]
    wanted = [a for s in sites for a in (*values_of(s.eqn), *(e.invars[0] for e, _ in s.around))]
    needed = found.needed(wanted)
    eqns = [e for e in walk_all(task.body.eqns) if not needed.isdisjoint(e.outvars)]
    inside = [e for eqn in eqns for e in walk_all([eqn])]
    if any(e.primitive.effects and e.primitive is not LOAD and not e.primitive.writes for e in inside):
        return False
    if any(e.primitive is ATOMIC and e.outvar in needed for e in inside):  # its old value is there once
        return False
    loads = [e for e in inside if e.primitive is LOAD]
    if any(is_local(e.invars[0]) or (e.invars[0] is ref and scatter.is_all_there_is) for e in loads):
        return False
    if any(e.primitive is LOAD and e.invars[0] is ref for e in task.head):
        return False
    return reads_before_writes(found, loads)


def _acts(eqn: Eqn) -> bool:
    return eqn.primitive.writes or Effect.CHECK in eqn.primitive.effects


def _whole(scatter: Scatter) -> Where:
    """Returns all elements, along each axis that is not one of components."""
    return tuple(range(scatter.shape[axis]) for axis in scatter.element_axes)


def _cut(box: Where, name: str, scatters: Sequence[Scatter]) -> Iterator[tuple[Where, str]]:
    """Yields parts of a box in which all elements, or none, have each remainder of a step."""
    axes, full = scatters[0].element_axes, scatters[0].full
    parts = [
        [r for r in (range(b.start, min(b.stop, full[a])), range(max(b.start, full[a]), b.stop)) if r]
        for b, a in zip(box, axes, strict=True)
    ]
    for part in product(*parts):
        yield part, name


def _inner(scatters: Sequence[Scatter], whole: Where) -> Where:
    """Returns the elements between ends of pieces, the longest range of them along each axis."""
    ends = [{r.start, r.stop} for r in whole]
    for scatter in scatters:
        axes = scatter.element_axes
        for found, axis in zip(ends, axes, strict=True):
            found.add(scatter.full[axis])
        for piece in scatter.pieces:
            for found, axis in zip(ends, axes, strict=True):
                found |= {piece.targets[axis].start, piece.targets[axis].stop}
    return tuple(max((range(a, b) for a, b in pairwise(sorted(found))), key=len) for found in ends)


def _pays(found: ScatteringTask, scatter: Scatter) -> bool:
    """Returns whether values are computed again for less than it costs to share the elements between threads."""
    sites = len({p.site for p in scatter.pieces})
    whole = _whole(scatter)
    gather = Gather(found, _inner([scatter], whole), scatter.steps).task([scatter], {})
    iterations = max(prod(map(len, found.box.values())) // prod(map(len, whole)), 1)
    return operations(gather.body) <= iterations * (operations(found.task.body) + SCATTER_COST * sites)
