"""A program that runs many times at once: a batch axis becomes the slower half of every task's index.

    range_for i in a:b        becomes    range_for f in 0 : size * n      n = b - a, batch = f / n, i = a + f % n
    serial                    becomes    range_for batch in 0 : size

References that differ between elements of the batch get a leading axis; shared ones stay as they are and are never
copied. A task that touches no batched reference runs once. Each element runs its own loops for as long as it needs. If
the bounds of a task differ between elements, its range is the widest, and iterations beyond an element's do nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.copies import copy_task
from qdtrace.ir.dataflow import slice_of
from qdtrace.ir.memory import touched, written
from qdtrace.ir.primitives import TELL
from qdtrace.ir.program import Block, Literal, Program, Stage, Task, Var, is_global, literal, ref_type
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.tells import of_iteration
from qdtrace.ir.types import DType, RefType
from qdtrace.ir.walk import free_vars, walk_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from qdtrace.ir.program import Atom, Eqn

I32, I64 = DType.i32, DType.i64


def batched_references(program: Program, mask: Sequence[bool], others: Iterable[Var] = ()) -> set[Var]:
    """Returns the references that differ between elements of the batch: parameters in the mask, `others`, and all that
    tasks which use those write."""
    batched = {v for v, given in zip(program.params, mask, strict=True) if given}.union(others)
    grown = True
    while grown:
        before = len(batched)
        for task in program.tasks:
            if any(ref in batched for ref in task.refs):
                batched.update(filter(is_global, written(task.all_eqns)))
        grown = len(batched) > before
    return batched


def batch(program: Program, mask: Sequence[bool], size: int, *, all_results: bool = True) -> Program:
    """Returns the program for `size` calls at once. Parameters in the mask have a leading axis, as have all results.

    Without `all_results`, results that do not depend on such parameters have no leading axis.
    """
    batched = batched_references(program, mask, program.results if all_results else ())
    own = (v for v in (*program.params, *program.buffers) if v in batched)
    new = {v: Var(RefType(v.dtype, (size, *ref_type(v).shape)), v.hint) for v in own}
    # A parameter without the axis that is written, or that is a result: each element of the batch has a copy.
    copied = [v for v, given in zip(program.params, mask, strict=True) if v in batched and not given]
    kept = {v: Var(v.type, v.hint) for v in copied}
    params = tuple(kept.get(v) or new.get(v, v) for v in program.params)
    tasks: list[Task] = [copy_task(kept[v], new[v]) for v in copied]
    extra: list[Var] = []
    initial = {new.get(v, v): value for v, value in program.initial.items()}
    for task in program.tasks:
        if not any(ref in batched for ref in task.refs):
            tasks.append(task)
            continue
        made, buffers = _task(task, new, size)
        tasks += made
        extra += buffers
        initial |= buffers
    return replace(
        program,
        params=params,
        buffers=(*(new.get(v, v) for v in program.buffers), *(new[v] for v in copied), *extra),
        tasks=tuple(tasks),
        results=tuple(new.get(v, v) for v in program.results),
        initial=initial,
        stage=Stage.TRACED,
        donated_from={
            new.get(r, r): new.get(p, p)
            for r, p in program.donated_from.items()
            if (r in new) == (p in new) and p not in kept
        },
        limits={v: limits for v, limits in program.limits.items() if v in params},
    )


class Batcher(Copier):
    """Copies equations with the batch index in front of the indices of batched references."""

    def __init__(self, new: Mapping[Var, Var], at: Atom) -> None:
        super().__init__()
        self.new = new
        self.at = at
        self.iteration = at
        """Index of the task that is built."""

    def copy(self, eqns: Sequence[Eqn]) -> None:
        """Appends copies of equations."""
        for eqn in eqns:
            self.visit(eqn)

    def visit(self, eqn: Eqn) -> None:
        """Appends a copy of an equation."""
        super().visit(eqn)
        if eqn.primitive.is_access and eqn.invars[0] in self.new:
            copy = self.current.eqns.pop()
            first = 1 + len(eqn.invars) - 1 - ref_type(eqn.invars[0]).ndim
            invars = (self.new[eqn.invars[0]], *copy.invars[1:first], self.at, *copy.invars[first:])  # type: ignore[index]
            self.append(replace(copy, invars=invars))
        elif eqn.primitive is TELL:
            self.append(of_iteration(self.current.eqns.pop(), self.iteration))


def _count(size: int, extent: Atom, builder: Builder) -> Atom:
    if isinstance(extent, Literal):
        return literal(size * max(int(extent.value), 0), extent.dtype)
    return builder("mul", builder("max", extent, literal(0, extent.dtype)), literal(size, extent.dtype))


def _task(task: Task, new: Mapping[Var, Var], size: int) -> tuple[list[Task], dict[Var, Literal]]:
    if task.index is None:
        return [_serial(task, new, size)], {}
    moved = any(ref in new for ref in touched(walk_all(task.head)))
    constant = isinstance(task.start, Literal) and isinstance(task.stop, Literal)
    varies = moved and not constant
    length = int(task.stop.value) - int(task.start.value) if constant else 0  # type: ignore[union-attr]
    dtype = task.index.dtype if constant and size * length < 2**31 else I64
    before: list[Task] = []
    buffers: dict[Var, Literal] = {}
    ends: list[Var] = []
    head, extent = Builder(), literal(length, dtype)
    builder = Batcher(new, extent)
    if varies:
        widest = Var(RefType(I64, ()), "widest")
        ends = [Var(RefType(task.index.dtype, (size,)), name) for name in ("starts", "stops")]
        buffers = {widest: literal(0, I64), **dict.fromkeys(ends, literal(0, task.index.dtype))}
        before.append(_bounds(task, new, size, ends, widest))
        extent = head.load(widest)
    elif not moved:
        head.current.eqns += builder.rebuild_eqns(task.head)
        if not constant:
            extent = _difference(head, *builder.atoms((task.start, task.stop)))
    total = _count(size, extent, head)
    flat = scalar_var(dtype, "f")
    with builder.block() as body:
        safe = extent if constant else builder("max", extent, literal(1, dtype))
        builder.at, builder.iteration, offset = builder("div", flat, safe), flat, builder("rem", flat, safe)
        if moved:
            # equations that only the bounds need may load memory that the task writes
            builder.copy(slice_of(task.head, free_vars(task.body)))
        first, last = builder.atoms((task.start, task.stop))
        if ends:
            first, last = (builder.load(ref, builder.at) for ref in ends)
        builder.env[task.index] = builder("add", first, builder.convert(offset, task.index.dtype))
        if ends:
            with builder.block() as then:
                builder.copy(task.body.eqns)
            runs = builder("lt", offset, _difference(builder, first, last))
            builder.emit("if", runs, blocks=(then.close(), Block()))
        else:
            builder.copy(task.body.eqns)
    made = replace(
        task,
        index=flat,
        start=literal(0, dtype),
        stop=total,
        head=tuple(head.current.eqns),
        body=Block((), tuple(body.eqns)),
    )
    return [*before, made], buffers


def _difference(builder: Builder, first: Atom, last: Atom) -> Atom:
    return builder("sub", builder.convert(last, I64), builder.convert(first, I64))


def _bounds(task: Task, new: Mapping[Var, Var], size: int, ends: Sequence[Var], widest: Var) -> Task:
    """Returns a task that computes the range of each element, and the longest."""
    at = scalar_var(I32, "batch")
    builder = Batcher(new, at)
    with builder.block() as body:
        builder.copy(task.head)
        first, last = builder.atoms((task.start, task.stop))
        for ref, value in zip(ends, (first, last), strict=True):
            builder.store(ref, value, at)
        builder.accum(widest, _difference(builder, first, last), op="max")
    name = f"{task.name}_bounds"
    return Task("range_for", at, literal(0, I32), literal(size, I32), body.close(), (), name, task.loc)


def _serial(task: Task, new: Mapping[Var, Var], size: int) -> Task:
    at = scalar_var(I32, "batch")
    builder = Batcher(new, at)
    with builder.block() as body:
        builder.copy((*task.head, *task.body.eqns))
    zero, stop = literal(0, I32), literal(size, I32)
    return replace(task, kind="range_for", index=at, start=zero, stop=stop, head=(), body=Block((), tuple(body.eqns)))
