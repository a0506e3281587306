"""Rows that one iteration of a task alone accesses become private arrays, where a tape of their loads would be longer.

    for k in 1 : n                           row: cell[f32,8] = ...          # a copy of x[i, :]
      v = load x i k-1        becomes        for k in 1 : n
      store x w i k                            v = load row k-1
                                               store row w k
                                             ...                             # x[i, :] = row

What is kept of a private array is chosen later: the stores to it are undone, say (`array_tape`). Where nothing bounds
the number of iterations, it belongs to the state of the loop (`loops`). A row is given by indices that all accesses of
the task share and that differ between iterations; a task of one iteration owns whole arrays.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms, Form
from qdtrace.analysis.index.most_trips import MostTrips
from qdtrace.analysis.index.trips import task_values
from qdtrace.analysis.memory import TaskMemory
from qdtrace.autodiff.loops.slots import each_index
from qdtrace.autodiff.tape import ROW_BYTES, tape_bytes
from qdtrace.autodiff.write_once import settled
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import ATOMIC, BOUND
from qdtrace.ir.program import Literal, Var, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_all

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from qdtrace.ir.program import Atom, Eqn, Program, Task


def with_private_rows(program: Program, zero: Callable[[], Container[Var]], near: int) -> Program:
    """Returns the program with rows as private arrays where they take less memory than tapes.

    `zero` returns the references that are zero: no value of these goes on a tape, so rows of these alone, of which the
    adjoints become private, may have `near` bytes.
    """
    return replace(program, tasks=tuple(with_rows(task, zero, near) for task in program.tasks))


def with_rows(task: Task, zero: Callable[[], Container[Var]] = frozenset, near: int = ROW_BYTES) -> Task:
    """Returns the task with rows as private arrays where they take less memory than tapes."""
    found = settled(task, by_data=False)
    if not found.taped:
        return task
    rows: dict[Var, int] = {}
    for ref, nbytes in tape_bytes(task, found.taped, MostTrips(task)).items():
        row = _row_of(task, ref)
        # The row, and its adjoint.
        if row is not None and (nbytes is None or 2 * row.nbytes < nbytes):
            rows[ref] = 0 if nbytes is None else row.nbytes
    if max(rows.values(), default=0) > near and all(ref in zero() for ref in rows):
        rows = {ref: nbytes for ref, nbytes in rows.items() if nbytes <= near}
    for ref in rows:
        row = _row_of(task, ref)
        assert row is not None
        task = _Private(row).task(task)
    return task


@frozen
class _Row:
    """The row of an array that an iteration alone accesses."""

    ref: Var
    first: int
    """Position of the first equation of the body that uses the row."""
    fixed: tuple[Atom | Form | None, ...]
    """Index per axis, as a value or as a form to compute; None on axes of the row itself."""
    unsure: tuple[int, ...]
    """Axes whose index may be out of bounds, in iterations that do not use the row."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes of the row."""
        return tuple(n for n, a in zip(ref_type(self.ref).shape, self.fixed, strict=True) if a is None)

    @property
    def nbytes(self) -> int:
        """Bytes of the row."""
        return prod(self.shape) * ref_type(self.ref).dtype.itemsize


def _row_of(task: Task, ref: Var) -> _Row | None:
    """Returns the row of each iteration that contains all accesses to a reference; None if there is none."""
    used = [e for e in task.all_eqns if e.primitive.is_access and e.invars[0] is ref]
    uses = [any(e in used for e in walk_all([eqn])) for eqn in task.body.eqns]
    if any(e in used for e in walk_all(task.head)) or any(e.primitive is ATOMIC for e in used):
        return None
    forms, before = AffineForms(task), task.body.eqns[: uses.index(True)]
    known = {v for eqn in (*task.head, *before) for v in eqn.outvars} | {task.index}
    columns = zip(*map(indices_of, used), strict=True)
    fixed = tuple(_common(column, forms, known) for column in columns)
    row = _Row(ref, len(before), fixed, tuple(_unsure(ref, fixed, forms, before)))
    names = [used_index for used_index, a in zip(indices_of(used[0]), fixed, strict=True) if a is not None]
    values = task_values(task)
    is_own = (values is not None and values.count <= 1) or TaskMemory(task).proofs(names)
    return row if is_own and row.nbytes <= ROW_BYTES else None


def _common(column: tuple[Atom, ...], forms: AffineForms, known: Container[object]) -> Atom | Form | None:
    """Returns the value that an index has in all accesses, or a form of it that can be computed before them.

    Returns None if the accesses differ in it or it is not known before them.
    """
    found = {forms.of(a) for a in column}
    if len(found) != 1:
        return None
    form = found.pop()
    atoms = (a for a in (form.sole_term(), *column) if isinstance(a, Literal) or (isinstance(a, Var) and a in known))
    return next(atoms, form if all(isinstance(t, Var) and t in known for t in form.terms) else None)


def _unsure(
    ref: Var, fixed: tuple[Atom | Form | None, ...], forms: AffineForms, before: Iterable[Eqn]
) -> Iterable[int]:
    checked = {eqn.outvar for eqn in before if eqn.primitive is BOUND}
    for axis, (atom, size) in enumerate(zip(fixed, ref_type(ref).shape, strict=True)):
        if atom is None or isinstance(atom, Literal) or atom in checked:
            continue
        bounds = forms.bounds(atom if isinstance(atom, Form) else forms.of(atom))
        if bounds is None or bounds[0] < 0 or bounds[1] >= size:
            yield axis


class _Private(Rebuilder):
    """Rebuilds a task to work on a private copy of a row."""

    def __init__(self, row: _Row) -> None:
        super().__init__()
        self.row = row
        self.copy: Var
        self.names: list[Atom | None]

    def task(self, task: Task) -> Task:
        """Returns the task, with the row copied before the first access and back at the end."""
        own, whole = self.row, self.row.ref
        with self.block() as body:
            for number, eqn in enumerate(task.body.eqns):
                if number == own.first:
                    self.names = [self._name(a) for a in own.fixed]
                    self.copy = self.cell(whole.dtype, own.shape, f"{whole.hint}_row")
                    self._if_it_is(lambda at: self.store(self.copy, self.load(whole, *self._place(at)), *at))
                self.visit(eqn)
            self._if_it_is(lambda at: self.store(whole, self.load(self.copy, *at), *self._place(at)))
        return replace(task, body=body.close())

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation; accesses to the row become accesses to the copy."""
        if not eqn.primitive.is_access or eqn.invars[0] is not self.row.ref:
            super().visit(eqn)
            return
        self.loc = eqn.loc
        at = [a for a, name in zip(self.atoms(indices_of(eqn)), self.names, strict=True) if name is None]
        outs = self.emit(eqn.primitive, self.copy, *self.atoms(values_of(eqn)), *at, **eqn.params)
        self.env.update(zip(eqn.outvars, outs, strict=True))

    def _place(self, at: list[Atom]) -> list[Atom]:
        """Returns the indices in the whole array of an element of the row."""
        rest = iter(at)
        return [next(rest) if name is None else name for name in self.names]

    def _name(self, index: Atom | Form | None) -> Atom | None:
        if not isinstance(index, Form):
            return None if index is None else self.atom(index)
        total: Atom = _number(index.constant)
        for term, factor in index.terms.items():
            assert isinstance(term, Var)
            total = self("add", total, self("mul", self.convert(self.atom(term), DType.i32), _number(factor)))
        return total

    def _if_it_is(self, visit: Callable[[list[Atom]], None]) -> None:
        """Visits all elements of the row, under a test that its indices are in bounds where that is not certain."""
        tests: list[Atom] = []
        for axis in self.row.unsure:
            name, size = self.names[axis], ref_type(self.row.ref).shape[axis]
            assert name is not None
            tests += [self("ge", name, literal(0, name.dtype)), self("lt", name, literal(size, name.dtype))]
        with self.block() as there:
            each_index(self, self.row.shape, visit)
        if not tests:
            self.current.eqns += there.eqns
            return
        with self.block() as other:
            pass
        self.emit("if", reduce(partial(self, "and"), tests), blocks=(there.close(), other.close()))


def _number(value: int) -> Literal:
    """Returns an i32 constant that is the number modulo 2**32, as forms of indices are exact modulo 2**32."""
    return literal((value + (1 << 31)) % (1 << 32) - (1 << 31), DType.i32)
