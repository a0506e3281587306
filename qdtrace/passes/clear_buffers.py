"""Fills: a task that only stores constants all over buffers that nothing used before becomes their initial value.

Before:  buffer b: ref[f32,4x8]                 After:  buffer b: ref[f32,4x8] = 0.0:f32
         range_for i in 0:i32 : 32:i32                  range_for i in 0:i32 : 4:i32
           r: i32 = rem i 8:i32                           a: f32 = load x i
           q: i32 = div i 8:i32                           accum[op=add] b a i 0:i32
           store b 0.0:f32 q r
         range_for j in 0:i32 : 4:i32
           a: f32 = load x j
           accum[op=add] b a j 0:i32

A clear is no launch, and `zeros` that are all of a program need no code at all. Where the first task after it stores
every element and reads none (`analysis/stored`), there is no clear. The last pass: what could use the constant itself
has taken it by then.

The task may have nested loops and several stores, but its bounds are constants and nothing else happens in it: no
load, no condition. That every element is stored is proved: the row-major address, an affine form over the indices of
the loops, counts through the buffer in a mixed radix (its strides are 1, n, n * m, ... up to the size). Stores that
differ by a constant, as an unrolled loop leaves them, are one more digit. One buffer gets one value. Parameters have a
content already, and a buffer that an earlier task uses is not the same memory before it; such tasks stay whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.affine import AffineForms
from qdtrace.analysis.stored import filled_by
from qdtrace.ir.program import Atom, Literal, Program, Task, Var, ref_type
from qdtrace.ir.types import Space
from qdtrace.ir.walk import task_refs, walk_task
from qdtrace.passes.base import Pass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from qdtrace.analysis.affine import Term
    from qdtrace.ir.program import Eqn

_LARGEST = 1 << 32
"""Elements up to which addresses are exact: forms are modulo this."""


@dataclass(frozen=True)
class ClearBuffers(Pass):
    """Turns fills into initial values."""

    name: ClassVar[str] = "clear_buffers"

    def __call__(self, program: Program) -> Program:
        """The program without tasks that only fill buffers nothing used before."""
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
    """Whether the first task that uses a reference stores every element of it and does nothing else with it."""
    for task in tasks:
        if ref in task_refs(task):
            used = [e.primitive.name for e in walk_task(task) if e.invars and e.invars[0] is ref]
            return set(used) == {"store"} and ref in filled_by(task)
    return False


@dataclass(frozen=True)
class _Loop:
    """Values of an index: `start`, `start + step`, ..., `count` of them."""

    start: int
    step: int
    count: int


def fill_of(task: Task) -> dict[Var, Literal] | None:
    """The value that the task stores at every element of each reference, if it does that and nothing else."""
    if any(eqn.blocks or eqn.primitive.effects for eqn in task.head):
        return None
    loops: dict[Term, _Loop] = {}
    if task.index is not None:
        loop = _loop(task.start, task.stop, 1)
        if loop is None:
            return None
        loops[task.index] = loop
    stores: dict[Var, list[Sequence[Atom]]] = {}
    values: dict[Var, Literal] = {}
    if not _collect(task.body.eqns, loops, stores, values) or not stores:
        return None
    forms = AffineForms(task)
    return values if all(_covers(ref, found, loops, forms) for ref, found in stores.items()) else None


def _loop(start: Atom, stop: Atom, step: int) -> _Loop | None:
    """The values of an index that has some, where they are constants."""
    if not isinstance(start, Literal) or not isinstance(stop, Literal) or not step:
        return None
    count = len(range(int(start.value), int(stop.value), step))
    return _Loop(int(start.value), step, count) if count else None


def _collect(
    eqns: Iterable[Eqn],
    loops: dict[Term, _Loop],
    stores: dict[Var, list[Sequence[Atom]]],
    values: dict[Var, Literal],
) -> bool:
    """Finds the loops and the indices of the stores; False where anything else happens, or to several values."""
    for eqn in eqns:
        if eqn.primitive.name == "store":
            ref, value, *indices = eqn.invars
            if not isinstance(ref, Var) or ref_type(ref).space is not Space.GLOBAL or not isinstance(value, Literal):
                return False
            if values.setdefault(ref, value) != value:
                return False
            stores.setdefault(ref, []).append(indices)
        elif eqn.primitive.name == "for" and not eqn.outvars:
            start, stop, step = eqn.invars
            loop = _loop(start, stop, int(step.value)) if isinstance(step, Literal) else None
            if loop is None:
                return False
            (body,) = eqn.blocks
            loops[body.params[0]] = loop
            if not _collect(body.eqns, loops, stores, values):
                return False
        elif eqn.blocks or eqn.primitive.effects:
            return False
    return True


def _covers(ref: Var, stores: Iterable[Sequence[Atom]], loops: Mapping[Term, _Loop], forms: AffineForms) -> bool:
    """Whether the stores reach every element of the reference."""
    kind = ref_type(ref)
    if kind.size > _LARGEST:
        return False
    alike: dict[frozenset[tuple[Term, int]], set[int]] = {}
    for indices in stores:
        terms, constant = forms.address(kind, indices).key
        alike.setdefault(terms, set()).add(constant)
    return any(_counts(terms, constants, loops) == kind.size for terms, constants in alike.items())


def _counts(terms: Iterable[tuple[Term, int]], constants: set[int], loops: Mapping[Term, _Loop]) -> int | None:
    """N where `constant + sum(coefficient * index)` takes the values 0 ... N-1; None where that is not seen."""
    base, *others = sorted(constants)
    digits: list[tuple[int, int]] = []
    if others:
        digits.append((others[0] - base, len(constants)))
        if others != [base + k * digits[0][0] for k in range(1, len(constants))]:
            return None
    for term, coefficient in terms:
        loop = loops.get(term)
        if loop is None:
            return None
        stride = coefficient * loop.step
        # What counts down reaches the same elements as from its last one up.
        base += coefficient * loop.start + min(stride, 0) * (loop.count - 1)
        if loop.count > 1:
            digits.append((abs(stride), loop.count))
    size = 1
    for stride, count in sorted(digits):
        if stride != size:
            return None
        size *= count
    return None if base else size
