"""Tangents of accumulations by `min`, `max` and `mul`, as sums.

The tangent of a maximum is the sum of the tangents of all values equal to it, divided by their number; the element's
value before the task counts as one of the values. To the tangent of a product, each factor adds its tangent times all
other factors (`products`). Those are constants in the sum, so a product has first derivatives only; extremes have all.

The task runs three times and values are compared between runs, so the program must be compiled without `fast_math`: a
multiplication and an addition fused in one run alone would give a maximum that no value equals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.autodiff.products import F64, I64, joined, split
from qdtrace.autodiff.versions import with_memory, written_by
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.copies import copy_task, each_element
from qdtrace.ir.custom import is_part
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Block, Task, Var, literal, ref_type
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from qdtrace.ir.program import Atom, Eqn, Literal

I32 = DType.i32


class Sums:
    """The tasks that replace one which accumulates into the references of `found`, by the operations there."""

    def __init__(self, task: Task, found: Mapping[Var, str], shared: Container[Var], twins: Mapping[Var, Var]) -> None:
        """`shared` are references with other elements that the task accesses otherwise; `twins` maps references of
        tangents to those of `found`."""
        self.before_it: list[Task] = []
        """Tasks that find the results and count the values: the task itself, on copies of all that it writes."""
        self.after_it: list[Task] = []
        """Tasks that store the accumulated tangents into their elements."""
        self.initial: dict[Var, Literal] = {}
        """Buffers of these tasks, with their initial values."""
        before = {r: self._buffer(r) for r in found}
        for ref, copy in before.items():
            self.before_it.append(copy_task(ref, copy))
        ops = {twin: found[ref] for twin, ref in twins.items()}
        primal = _WithParts(ops, lambda *_: None).rebuild_task(task)
        result = self._run(primal, before)
        looks: dict[Var, _Place] = {}
        for ref, op in found.items():
            touched = self._buffer(ref, I32) if ref in shared else None
            counted = self._buffer(ref, I32)
            if op == "mul":
                looks[ref] = _Factors(self._buffer(ref, F64, 1), self._buffer(ref, I64), counted, before[ref], touched)
            else:
                looks[ref] = _Extreme(result[ref], counted, before[ref], touched)
        self._run(_Replaced(lambda b, r, v, at: looks[r].look(b, v, at), found).rebuild_task(primal), before)
        for ref in found:
            self.before_it.append(each_element(ref, looks[ref].count_before))
        sums = {r: self._buffer(r) for r in twins}

        def add(b: Builder, r: Var, t: Atom, v: Atom, at: list[Atom]) -> None:
            b.accum(sums[r], looks[twins[r]].part(b, v, t, at), *at)

        self.task = _WithParts(ops, add).rebuild_task(task)
        """The task with sums in place of the parts."""
        for twin, ref in twins.items():
            total, place = sums[twin], looks[ref]
            finish = lambda b, at, r=twin, s=total, p=place: p.finish(b, r, s, at)  # noqa: E731
            self.after_it.append(each_element(twin, finish))

    def _buffer(self, like: Var, dtype: DType | None = None, value: int = 0) -> Var:
        var = ref_var(dtype or like.dtype, ref_type(like).shape, like.hint)
        self.initial[var] = literal(value, var.dtype)
        return var

    def _run(self, task: Task, before: Mapping[Var, Var]) -> dict[Var, Var]:
        """Adds a run of a task on copies of the references that it writes, and returns the copies.

        A copy starts from the content in `before`, or from the reference itself.
        """
        copies = {r: self._buffer(r) for r in written_by(task) if r not in self.initial}
        for ref, copy in copies.items():
            self.before_it.append(copy_task(before.get(ref, ref), copy))
        self.before_it.append(with_memory(Copier().rebuild_task(task), copies))
        return copies


class _Place:
    """The buffers that hold, for each element of a reference, counts of what it accumulates."""

    def __init__(self, counted: Var, before: Var, touched: Var | None) -> None:
        """`touched` is for references with other elements that the task accesses otherwise."""
        self.counted, self.before, self.touched = counted, before, touched

    def look(self, b: Builder, value: Atom, at: list[Atom]) -> None:
        """Counts a value that is accumulated, and marks its element."""
        self.count(b, value, at)
        if self.touched is not None:
            b.accum(self.touched, literal(1, I32), *at)

    def count_before(self, b: Builder, at: list[Atom]) -> None:
        """Counts the value that the element had before the task."""
        self.count(b, b.load(self.before, *at), at)

    def count(self, b: Builder, value: Atom, at: list[Atom]) -> None:
        """Counts a value."""
        raise AssertionError(type(self))

    def part(self, b: Builder, value: Atom, tangent: Atom, at: list[Atom]) -> Atom:
        """Returns what a value with this tangent adds to the tangent of the result."""
        raise AssertionError(type(self))

    def finish(self, b: Builder, twin: Var, total: Var, at: list[Atom]) -> None:
        """Stores the tangent of the result: the part of the element's value before the task, plus the sum of parts."""
        with b.block() as block:
            own = self.part(b, b.load(self.before, *at), b.load(twin, *at), at)
            b.store(twin, b("add", own, b.load(total, *at)), *at)
        if self.touched is None:
            b.current.eqns += block.eqns
        else:
            b.emit("if", b("gt", b.load(self.touched, *at), literal(0, I32)), blocks=(block.close(), Block()))


class _Extreme(_Place):
    """Counts the values that equal the extreme."""

    def __init__(self, result: Var, counted: Var, before: Var, touched: Var | None) -> None:
        super().__init__(counted, before, touched)
        self.result = result

    def count(self, b: Builder, value: Atom, at: list[Atom]) -> None:
        """Counts a value that equals the extreme."""
        b.accum(self.counted, b.convert(b("eq", value, b.load(self.result, *at)), I32), *at)

    def part(self, b: Builder, value: Atom, tangent: Atom, at: list[Atom]) -> Atom:
        """Returns the share of a value that equals the extreme."""
        # If a value is NaN, nothing equals the result: the count is 0.
        count = b.load(self.counted, *at)
        share = b("div", tangent, b.convert(b("max", count, literal(1, I32)), value.dtype))
        return b("select", b("eq", value, b.load(self.result, *at)), share, literal(0, value.dtype))


class _Factors(_Place):
    """Counts factors that are zero and multiplies the others."""

    def __init__(self, rest: Var, exponents: Var, counted: Var, before: Var, touched: Var | None) -> None:
        super().__init__(counted, before, touched)
        self.rest, self.exponents = rest, exponents

    def count(self, b: Builder, value: Atom, at: list[Atom]) -> None:
        """Counts a factor that is zero, or multiplies by it."""
        is_zero = b("eq", value, literal(0, value.dtype))
        number, exponent = split(b, value)
        b.accum(self.rest, b("select", is_zero, literal(1, F64), number), *at, op="mul")
        b.accum(self.exponents, exponent, *at)
        b.accum(self.counted, b.convert(is_zero, I32), *at)

    def part(self, b: Builder, value: Atom, tangent: Atom, at: list[Atom]) -> Atom:
        """Returns the product of all other factors and the tangent."""
        zero = literal(0, value.dtype)
        is_zero = b("eq", value, zero)
        number, exponent = split(b, value)
        number = b("div", b.load(self.rest, *at), b("select", is_zero, literal(1, F64), number))
        others = joined(b, number, b("sub", b.load(self.exponents, *at), exponent), value.dtype)
        zeros = b("sub", b.load(self.counted, *at), b.convert(is_zero, I32))
        return b("mul", b("select", b("eq", zeros, literal(0, I32)), others, zero), tangent)


class _WithParts(Copier):
    """Copies a task and lets `emit` replace the sums of `Part`s into tangents.

    `emit` takes the reference of the tangent, the tangent, the value that it is the tangent of, and indices.
    """

    def __init__(self, ops: Mapping[Var, str], emit: Callable[[Builder, Var, Atom, Atom, list[Atom]], None]) -> None:
        """`ops` maps the reference of a tangent to the operation whose parts are replaced."""
        super().__init__()
        self._ops, self._emit = ops, emit
        self._parts: dict[Atom, Eqn] = {}

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or what `emit` makes of a sum of a part."""
        if is_part(eqn):
            self._parts[eqn.outvar] = eqn
        elif eqn.primitive is ACCUM:
            twin = eqn.invars[0]
            assert isinstance(twin, Var)
            part = self._parts.get(eqn.invars[1])
            if part is not None and part.params["rule"].op == self._ops.get(twin):
                tangent, value = self.atoms(part.invars)
                self._emit(self, twin, tangent, value, list(self.atoms(indices_of(eqn))))
                return
        super().visit(eqn)


class _Replaced(Copier):
    """Copies a task and lets `emit` replace the accumulations into `found`."""

    def __init__(self, emit: Callable[[Builder, Var, Atom, list[Atom]], None], found: Mapping[Var, str]) -> None:
        super().__init__()
        self._emit, self._found = emit, found

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or what `emit` makes of an accumulation."""
        ref = eqn.invars[0] if eqn.primitive is ACCUM else None
        if isinstance(ref, Var) and eqn.params["op"] == self._found.get(ref):
            self._emit(self, ref, self.atom(values_of(eqn)[0]), list(self.atoms(indices_of(eqn))))
        else:
            super().visit(eqn)
