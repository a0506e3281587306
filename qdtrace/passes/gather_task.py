"""Builds the tasks that gather: a loop over elements, each of which gets the values of all iterations that reach it."""

from __future__ import annotations

from functools import reduce
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import Form
from qdtrace.frozen import mutable
from qdtrace.ir.builder import scalar_var, unravel
from qdtrace.ir.combining import combining, identity
from qdtrace.ir.memory import values_of
from qdtrace.ir.primitives import IF
from qdtrace.ir.program import Block, Task, Var, literal, ref_type
from qdtrace.ir.rebuild import Copier
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.analysis.index.piecewise import OnBox
    from qdtrace.analysis.index.residues import Residue
    from qdtrace.analysis.scattered import Piece, Scatter, ScatteringTask
    from qdtrace.ir.program import Atom, Eqn, Literal

    Where = tuple[range, ...]
    """A box of elements: the range along each axis that is not one of components."""


@mutable(slots=True)
class _Iteration:
    """An iteration of the task that scatters, some of whose equations are copied."""

    digits: dict[Var, Form]
    """Its digits as forms of the element's index."""
    on: OnBox
    env: dict[Var, Atom]
    """Copies of its variables, by those of the task."""


@mutable(slots=True)
class _Sum:
    """The combination of what reaches one element."""

    scatter: Scatter
    total: Atom | None
    """The values so far; None if there is none yet."""

    def start(self) -> Atom:
        """Returns the values so far, or what changes no value."""
        return identity(self.scatter.op, self.scatter.ref.dtype) if self.total is None else self.total


class Gather(Copier):
    """Emits the task over one box of elements."""

    def __init__(self, found: ScatteringTask, where: Where, steps: Sequence[int] = ()) -> None:
        super().__init__()
        self.found = found
        self.where = where
        self.size = prod(map(len, where))
        largest = max(self.size, *(r.stop * max(steps, default=1) for r in where))
        self.dtype = DType.i32 if largest < 2**31 else DType.i64
        self.places = {scalar_var(self.dtype): None for _ in where}
        """Stands for the element's index along each axis that is not one of components."""
        self.at: dict[Var, Atom] = {}
        """The values of `places`."""
        self.now: _Iteration
        """The iteration of which copies are emitted."""

    def task(self, scatters: Sequence[Scatter], initial: Mapping[Var, Literal], name: str = "") -> Task:
        """Returns the task that combines each element of the box with all values that are accumulated into it.

        The scatters have the same axes apart from components. An element of a reference in `initial` is stored, with
        that value in it.
        """
        task, index = self.found.task, scalar_var(self.dtype, "i")
        self.now = _Iteration({}, self.found.on(self.found.box), self.env)
        head = self.rebuild_eqns(task.head)
        shared, copied = self.env, dict[object, _Iteration]()
        with self.block() as body:
            self.loc = task.loc
            parts = unravel(self, index, [len(r) for r in self.where])
            for place, part, values in zip(self.places, parts, self.where, strict=True):
                self.at[place] = self("add", part, literal(values.start, self.dtype)) if values.start else part
            for scatter in scatters:
                self._combine(scatter, initial.get(scatter.ref), shared, copied)
        start, stop = (literal(k, self.dtype) for k in (0, self.size))
        return Task(task.kind, index, start, stop, body.close(), head, name, task.loc, task.hints)

    def _combine(
        self, scatter: Scatter, initial: Literal | None, shared: dict[Var, Atom], copied: dict[object, _Iteration]
    ) -> None:
        """Emits the elements of one reference: one for each index along its axes of components."""
        axes, shape = scatter.component_axes, scatter.shape
        others, pieces = scatter.element_axes, scatter.components()
        at: list[Atom] = [literal(0, self.dtype) for _ in shape]
        for axis, place in zip(others, self.places, strict=True):
            at[axis] = self.at[place]
        stored = product(*(range(shape[a]) for a in axes)) if initial is not None else pieces
        for component in dict.fromkeys(stored):
            if not self._is_there(scatter, dict(zip(axes, component, strict=True))):
                continue
            for axis, number in zip(axes, component, strict=True):
                at[axis] = literal(number, self.dtype)
            place = self._element(scatter, at)
            total = _Sum(scatter, initial)
            colours: dict[tuple[Residue, ...], list[Piece]] = {}
            for piece in pieces.get(component, ()):
                colours.setdefault(piece.residues, []).append(piece)
            for residues, some in sorted(colours.items(), key=lambda colour: bool(colour[0])):
                if not residues:
                    for piece in some:
                        self._add(total, piece, others, shared, copied)
                    continue
                with self.block() as taken:
                    part = _Sum(scatter, None if initial is None else total.start())
                    for piece in some:
                        self._add(part, piece, others, shared, {})
                    if initial is None and part.total is not None:  # elements of other colours stay as they are
                        self.accum(scatter.ref, part.total, *place, op=scatter.op)
                if part.total is None:
                    continue
                is_of = reduce(lambda a, b: self("and", a, b), [self._is_of(residue, at) for residue in residues])
                if initial is None:
                    self.emit(IF, is_of, blocks=(taken.close(()), Block()))
                else:
                    blocks = (taken.close((part.total,)), self._only(total.start()))
                    (total.total,) = self.emit(IF, is_of, blocks=blocks)
            if initial is not None:
                self.store(scatter.ref, total.start(), *place)
            elif total.total is not None:
                self.accum(scatter.ref, total.total, *place, op=scatter.op)

    def _is_of(self, residue: Residue, at: Sequence[Atom]) -> Atom:
        """Emits whether an element has a colour."""
        along = [(at[axis], factor) for axis, factor in enumerate(residue.factors) if factor]
        is_wide = sum(f for _, f in along) * max(r.stop for r in self.where) >= 2**31
        dtype = DType.i64 if is_wide else self.dtype
        parts = [(self.convert(a, dtype), literal(f, dtype)) for a, f in along]
        whole = reduce(lambda a, b: self("add", a, b), [self("mul", a, f) if f.value > 1 else a for a, f in parts])
        rest = self("rem", whole, literal(residue.modulus, dtype))
        return self("eq", rest, literal(residue.remainder, dtype))

    def _element(self, scatter: Scatter, at: Sequence[Atom]) -> list[Atom]:
        """Emits the indices of an element from the numbers of steps and the remainders."""
        rests = iter(at[len(scatter.steps) :])
        return [
            number if step == 1 else self("add", self("mul", number, literal(step, self.dtype)), next(rests))
            for number, step in zip(at, scatter.steps, strict=False)
        ]

    def _is_there(self, scatter: Scatter, component: Mapping[int, int]) -> bool:
        """Returns whether a component is an element: in the last step of an axis not all remainders are."""
        first = {**dict(zip(scatter.element_axes, (r.start for r in self.where), strict=True)), **component}
        rests = iter(range(len(scatter.steps), len(scatter.shape)))
        shape = ref_type(scatter.ref).shape
        return all(
            n == 1 or first[axis] * n + component[next(rests)] < size
            for axis, (n, size) in enumerate(zip(scatter.steps, shape, strict=True))
        )

    def _add(
        self, total: _Sum, piece: Piece, axes: Sequence[int], shared: dict[Var, Atom], copied: dict[object, _Iteration]
    ) -> None:
        """Emits the combination with the value of a piece, where it reaches the element."""
        tests: list[Atom] = []
        meet: dict[int, range] = {}
        for axis, place, values in zip(axes, self.places, self.where, strict=True):
            target = piece.targets[axis]
            both = meet[axis] = range(max(target.start, values.start), min(target.stop, values.stop))
            if not both:
                return
            if both.start > values.start:
                tests.append(self("ge", self.at[place], literal(both.start, self.dtype)))
            if both.stop < values.stop:
                tests.append(self("lt", self.at[place], literal(both.stop, self.dtype)))
        place = dict(zip(axes, self.places, strict=True))
        digits = {
            d: Form({}, i.constant) if i.axis is None else Form({place[i.axis]: i.sign}, -i.sign * i.constant)
            for d, i in piece.inverse.items()
        }
        box = {d: i.values(meet) or piece.box[d] for d, i in piece.inverse.items()}
        key = None if tests or piece.guards else frozenset((d, form.key) for d, form in digits.items())
        self.now = copied.get(key) or _Iteration(digits, self.found.on(box), dict(shared))
        self.env = self.now.env
        index = self.found.task.index
        if index is not None and index not in self.env:
            self.env[index] = self._form(self.found.index, index.dtype)
        if not tests:
            total.total = self._value(piece, total)
            if key is not None:
                copied[key] = self.now
            return
        start = total.start()
        with self.block() as taken:
            found = self._value(piece, _Sum(total.scatter, start))
        condition = reduce(lambda a, b: self("and", a, b), tests)
        (total.total,) = self.emit(IF, condition, blocks=(taken.close((found,)), self._only(start)))

    def _value(self, piece: Piece, total: _Sum, level: int = 0) -> Atom:
        """Emits the combination with the value of a piece from a level of the branches around it."""
        around = piece.site.around
        eqns = around[level - 1][0].blocks[around[level - 1][1]].eqns if level else self.found.task.body.eqns
        (value,) = values_of(piece.site.eqn)
        needed = self.found.needed((value, *(guard.invars[0] for guard in piece.guards)))
        for eqn in eqns:
            if not needed.isdisjoint(eqn.outvars) and not self.now.env.keys() >= {*eqn.outvars}:
                self.visit(eqn)
        if level == len(around):
            found = self.atom(value)
            ref = total.scatter.ref
            return found if total.total is None else self(combining(total.scatter.op, ref.dtype), total.total, found)
        eqn, number = around[level]
        if eqn not in piece.guards:
            return self._value(piece, total, level + 1)
        start = total.start()
        with self.block() as taken:
            found = self._value(piece, _Sum(total.scatter, start), level + 1)
        blocks = (taken.close((found,)), self._only(start))
        return self.emit(IF, self.atom(eqn.invars[0]), blocks=blocks[::-1] if number else blocks)[0]

    def _only(self, value: Atom) -> Block:
        with self.block() as other:
            pass
        return other.close((value,))

    def visit(self, eqn: Eqn) -> None:
        """Appends a copy of an equation, without what it writes; an integer that has a form becomes this.

        Checks stay with the task that is left.
        """
        if eqn.primitive.writes or not eqn.outvars:
            return
        if not eqn.blocks:
            value = self.now.on.values.get(eqn.outvars[0])
            if value is None:
                super().visit(eqn)
            else:
                out = eqn.outvars[0]
                is_form = isinstance(value, Form)
                self.env[out] = self._form(value, out.dtype) if is_form else literal(value, out.dtype)
            return
        before = dict(self.env)
        super().visit(eqn)
        before.update((v, self.env[v]) for v in eqn.outvars)
        self.env.clear()  # what blocks bind is not seen behind them
        self.env.update(before)

    def _form(self, form: Form, dtype: DType) -> Atom:
        """Emits an integer of the iteration from the element's index."""
        whole = Form({}, form.constant)
        for digit, factor in form.terms.items():
            assert isinstance(digit, Var)
            whole = whole.plus(self.now.digits[digit], factor)
        total: Atom | None = None
        for place, factor in whole.terms.items():
            assert isinstance(place, Var)
            part = self.convert(self.at[place], dtype)
            part = part if factor == 1 else self("mul", part, literal(factor, dtype))
            total = part if total is None else self("add", total, part)
        if total is None:
            return literal(whole.constant, dtype)
        return self("add", total, literal(whole.constant, dtype)) if whole.constant else total
