"""Accumulations by `min`, `max` and `mul` as sums, whose derivatives are plain.

    accum[op=max] r v       becomes       accum[op=add] d w        w is v / c where v is the maximum, else 0

where `c` elements tie for the maximum of that place, what it held before among them; a product has `w = o v` instead,
`o` the product of all other factors. What the place holds afterwards is the accumulated value as before, with the
derivative of the sum. Other factors are constants in `w`, so a product has first derivatives only; extremes have all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.versions import copy_task, with_memory, written_by
from qdtrace.errors import GradientError
from qdtrace.ir.builder import Builder, ref_var, scalar_var, unravel
from qdtrace.ir.memory import MEMORY, indices_of, values_of
from qdtrace.ir.program import Block, Program, Task, Var, literal, ref_type
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from qdtrace.ir.program import Atom, Eqn, Literal

I32 = DType.i32


class DerivativeOf:
    """The rule of a value that has the derivative of its operand."""

    is_exact = True

    def __str__(self) -> str:
        return "derivative_of"

    def tangents(self) -> Block:
        """That of the operand."""
        x, t = scalar_var(self.dtype), scalar_var(self.dtype)
        return Block((x, t), (), (t,))

    adjoints = tangents

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype


def as_sums(program: Program, active: frozenset[Var], order: int) -> Program:
    """The program with other accumulations into active memory as sums. Raises GradientError for what is none."""
    tasks: list[Task] = []
    buffers: list[Var] = []
    initial: dict[Var, Literal] = {}
    for task in program.tasks:
        found = _accumulated(task, active)
        if not found:
            tasks.append(task)
            continue
        if order > 1 and "mul" in found.values():
            raise GradientError(
                f"{program.name}: a product accumulated in memory has first derivatives only, got order {order}",
                loc=task.loc,
                help="multiply values of a loop in a variable, or accumulate logarithms",
            )
        made = _Sums(task, found)
        tasks += made.tasks
        buffers += made.initial
        initial |= made.initial
    if not buffers:
        return program
    return replace(
        program, tasks=tuple(tasks), buffers=(*program.buffers, *buffers), initial={**program.initial, **initial}
    )


def _accumulated(task: Task, active: frozenset[Var]) -> dict[Var, str]:
    """References with such accumulations, and the operation."""
    found: dict[Var, str] = {}
    for eqn in walk_task(task):
        op = eqn.params.get("op")
        if eqn.primitive.name == "accum" and op != "add" and eqn.invars[0] in active:
            found[eqn.invars[0]] = str(op)
    for eqn in walk_task(task):
        ref = eqn.invars[0] if eqn.primitive.name in MEMORY else None
        if ref in found and (eqn.primitive.name != "accum" or eqn.params["op"] != found[ref]):
            raise GradientError(
                f"needs memory that one task touches by `{found[ref]}` alone, got `{eqn.primitive.name}` of it as well",
                loc=eqn.loc,
                help="split the loop in two",
            )
    return found


class _Sums:
    """The tasks that stand for one."""

    def __init__(self, task: Task, found: Mapping[Var, str]) -> None:
        self.tasks: list[Task] = []
        self.initial: dict[Var, Literal] = {}
        # The values, by the task itself on copies of all that it writes.
        self.before = {r: self._buffer(r) for r in found}
        for ref, copy in self.before.items():
            self.tasks.append(copy_task(ref, copy))
        result = self._run(task, {r: r for r in found})
        count = {r: self._buffer(r, I32) for r in found}
        rest = {r: self._buffer(r, value=1) for r, op in found.items() if op == "mul"}
        self.sums = {r: self._buffer(r) for r in found}
        looks = {r: _Place(found[r], result[r], count[r], rest.get(r), self.before[r]) for r in found}
        self._run(task, {r: r for r in found}, lambda r: looks[r].count)
        for ref in found:
            self._each(ref, looks[ref].count_before)
        sums = self.sums
        self.tasks.append(
            _Replaced(lambda b, r, v, at: b.accum(sums[r], looks[r].part(b, v, at), *at), found).rebuild_task(task)
        )
        for ref in found:
            self._each(ref, lambda b, at, r=ref: looks[r].finish(b, r, sums[r], at))

    def _buffer(self, like: Var, dtype: DType | None = None, value: int = 0) -> Var:
        var = ref_var(dtype or like.dtype, ref_type(like).shape, like.hint)
        self.initial[var] = literal(value, var.dtype)
        return var

    def _run(
        self, task: Task, found: Mapping[Var, Var], change: Callable[[Var], Callable[..., None]] | None = None
    ) -> dict[Var, Var]:
        """Runs the task on copies of what it writes."""
        copies = {r: self._buffer(r) for r in written_by(task)}
        for ref, copy in copies.items():
            self.tasks.append(copy_task(self.before.get(ref, ref), copy))
        if change is not None:
            visit = lambda b, r, v, at: change(r)(b, v, at)  # noqa: E731 - one for each reference
            changed = _Replaced(visit, found).rebuild_task(task)
        else:
            changed = Copier().rebuild_task(task)
        # what stands for accumulations has other references already
        self.tasks.append(with_memory(changed, copies))
        return copies

    def _each(self, ref: Var, visit: Callable[[Builder, list[Atom]], None]) -> None:
        """A task over all places."""
        builder, index = Builder(), scalar_var(I32, "i")
        with builder.block() as body:
            visit(builder, unravel(builder, index, ref_type(ref).shape))
        stop = literal(ref_type(ref).size, I32)
        self.tasks.append(Task("range_for", index, literal(0, I32), stop, body.close()))


class _Place:
    """What a place of memory knows of what was accumulated in it."""

    def __init__(self, op: str, result: Var, count: Var, rest: Var | None, before: Var) -> None:
        self.op, self.result, self.counted, self.rest, self.before = op, result, count, rest, before

    def count(self, b: Builder, value: Atom, at: list[Atom]) -> None:
        """Counts a value that is the extreme, or a factor that is zero; a product of the other factors."""
        zero, one = literal(0, value.dtype), literal(1, value.dtype)
        if self.rest is None:
            hit = b("eq", value, b.load(self.result, *at))
        else:
            hit = b("eq", value, zero)
            b.accum(self.rest, b("select", hit, one, value), *at, op="mul")
        b.accum(self.counted, b.convert(hit, I32), *at)

    def count_before(self, b: Builder, at: list[Atom]) -> None:
        """Counts what the place held before."""
        self.count(b, b.load(self.before, *at), at)

    def part(self, b: Builder, value: Atom, at: list[Atom]) -> Atom:
        """The part of a value in the sum: linear in it."""
        zero = literal(0, value.dtype)
        count = b.load(self.counted, *at)
        if self.rest is None:
            share = b("div", value, b.convert(count, value.dtype))
            return b("select", b("eq", value, b.load(self.result, *at)), share, zero)
        rest = b.load(self.rest, *at)
        is_zero = b("eq", value, zero)
        alone = b("select", b("eq", count, literal(1, I32)), rest, zero)
        others = b("div", rest, b("select", is_zero, literal(1, value.dtype), value))
        others = b("select", b("eq", count, literal(0, I32)), others, zero)
        factor = b("custom", b("select", is_zero, alone, others), rule="stop_gradient", result=0)
        return b("mul", factor, value)

    def finish(self, b: Builder, ref: Var, total: Var, at: list[Atom]) -> None:
        """Puts the accumulated value into its place, with the derivative of the sum."""
        own = self.part(b, b.load(self.before, *at), at)
        whole = b("add", own, b.load(total, *at))
        value = b.load(self.result, *at)
        b.store(ref, b("custom", value, whole, rule=DerivativeOf(ref.dtype), result=0), *at)


class _Replaced(Copier):
    """A copy of a task with something else in the place of accumulations."""

    def __init__(self, emit: Callable[[Builder, Var, Atom, list[Atom]], None], found: Mapping[Var, object]) -> None:
        super().__init__()
        self._emit, self._found = emit, found

    def visit(self, eqn: Eqn) -> None:
        """Appends what stands for an equation."""
        ref = eqn.invars[0] if eqn.primitive.name == "accum" else None
        if isinstance(ref, Var) and ref in self._found:
            self._emit(self, ref, self.atom(values_of(eqn)[0]), list(self.atoms(indices_of(eqn))))
        else:
            super().visit(eqn)
