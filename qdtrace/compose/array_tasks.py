"""Array code between loops as tasks over the rows of its results, for programs of any length.

XLA compiles array code for its shapes. So where one program is to run at all lengths (`qdtrace/lengths`), an equation
on arrays becomes tasks of the open segment, as a loop of the user does: one iteration computes one row, which is an
element of an array of one axis. Only the number of rows, offsets of rows and literals of the equation depend on lengths
then. What has no rule in `array_rules` is left to XLA. See docs/design/0092-array-code-at-any-length.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.compose.jaxprs import is_literal, physical_type
from qdtrace.compose.segment import BufferState, Operand, Pending, only
from qdtrace.frozen import frozen
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.program import Task, literal
from qdtrace.ir.types import DType
from qdtrace.trace.importer.structural import view
from qdtrace.trace.importer.values import ArrayRef, RefValue, rank0
from qdtrace.trace.physical import is_pair
from qdtrace.trace.tree import loc_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.compose.stager import Stager
    from qdtrace.ir.program import Atom, Literal, Var
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.core import Importer
    from qdtrace.trace.importer.values import Env, Value


def copied(stager: Stager, read: JaxprEqn) -> bool:
    """Stages a read of a buffer's whole content as a copy, by a task; returns False if it cannot be one."""
    aval = read.outvars[0].aval
    if 0 in aval.shape or is_pair(aval):
        return False
    state = stager.buffer_of(read)
    tasks = ArrayTasks(stager, read)
    ref = stager.segment.ref(state)
    if state.shape:
        tasks.rows(state.shape[0], lambda row: row.store(tasks.out, row.of(ArrayRef(ref))))
    else:
        tasks.serial(lambda row: row.importer.store_at(tasks.out, row.importer.load_at(ref, ()), ()))
    stager.segment.note(read, stager.conditions)
    return True


def assigned(stager: Stager, assign: JaxprEqn) -> bool:
    """Stages an assignment of a buffer's whole content as a copy, by a task; returns False if it cannot be one."""
    value = assign.invars[1]
    if not value.aval.shape or 0 in value.aval.shape or is_pair(value.aval) or stager.conditions:
        return False
    state = stager.buffer_of(assign)
    ref = stager.segment.ref(state)
    ArrayTasks(stager, assign).rows(state.shape[0], lambda row: row.store(ref, row.of(row.whole(value))))
    stager.segment.note(assign, stager.conditions)
    return True


def filled(stager: Stager, maker: JaxprEqn, state: BufferState) -> None:
    """Stages what memory begins with that is made of a value of the open segment."""
    tasks, ref = ArrayTasks(stager, maker), stager.segment.ref(state)
    (given,), shape = maker.invars, state.shape

    def one(row: Row) -> None:
        value, imp = row.whole(given), row.importer
        if value.ndim:
            row.store(ref, row.of(value))
        else:
            element = row.scalar(value)
            imp.loop_nest(shape[1:], lambda rest: imp.store_at(ref, element, [row.index, *rest][: len(shape)]))

    if shape:
        tasks.rows(shape[0], one)
    else:
        tasks.serial(one)
    stager.env[maker.outvars[0]] = state
    stager.segment.note(maker, stager.conditions)


def is_made(stager: Stager, maker: JaxprEqn) -> bool:
    """Returns whether memory begins with a value that tasks of the open segment made."""
    variables = [v for v in maker.invars if not is_literal(v)]
    is_open = any(isinstance(stager.env[v], Pending | Operand) for v in variables)
    return is_open and not is_pair(maker.outvars[0].aval) and 0 not in maker.outvars[0].aval.shape


@frozen(eq=False)
class Row:
    """One iteration of a task."""

    importer: Importer
    index: Atom
    """The index of the iteration; 0 of a serial task."""
    env: Env

    def moved(self, offset: int, stride: int = 1) -> Atom:
        """Returns `offset + index * stride`."""
        imp = self.importer
        return imp.op("add", imp.op("mul", self.index, imp.index(stride)), imp.index(offset))

    def whole(self, atom: jaxprs.Atom) -> Value:
        """Returns an operand."""
        return self.importer.read(self.env, atom)

    def of(self, value: Value, index: Atom | None = None) -> Value:
        """Returns the row of an array at an index that is in range, by default that of the iteration."""
        at, imp = self.index if index is None else index, self.importer
        if value.ndim == 1:
            return rank0(imp.element(value, [at]))
        memory = imp.spill(value) if isinstance(value, np.ndarray) else value
        return view(imp, memory, value.shape[1:], lambda rest: [at, *rest])

    def scalar(self, value: Value) -> Any:
        """Returns the element of an array of rank 0."""
        return self.importer.element(value, ())

    def apply(self, eqn: JaxprEqn, values: Sequence[Value]) -> Value:
        """Returns the result of an equation whose variables have the types of rows; `values` are all its operands."""
        env: Env = {v: x for v, x in zip(eqn.invars, values, strict=True) if not is_literal(v)}
        self.importer.eqn(eqn, env)
        found = env[eqn.outvars[0]]
        assert not isinstance(found, RefValue)
        return found

    def each(self, value: Value, body: Callable[[Any, Sequence[Atom]], None]) -> None:
        """Calls `body` with each element of a row and its index."""
        imp = self.importer
        if isinstance(value, np.ndarray):
            for at in np.ndindex(*value.shape):
                body(value[at], [imp.index(k) for k in at])
        else:
            imp.loop_nest(value.shape, lambda at: body(imp.element(value, at), at))

    def store(self, ref: Var, row: Value, index: Atom | None = None) -> None:
        """Stores a row, by default at the index of the iteration."""
        at = self.index if index is None else index
        self.each(row, lambda element, rest: self.importer.store_at(ref, element, [at, *rest]))

    def accumulate(self, ref: Var, value: Value, op: str) -> None:
        """Joins a value to the content of memory of its shape."""

        self.each(value, lambda element, at: self.join(ref, element, at, op))

    def join(self, ref: Var, element: Any, at: Sequence[Atom], op: str) -> None:
        """Joins an element to that of memory."""
        self.importer.emit("accum", ref, only(element), *at, op=op)


@frozen(eq=False)
class ArrayTasks:
    """The tasks that an equation becomes."""

    stager: Stager
    eqn: JaxprEqn

    @property
    def out(self) -> Var:
        """The memory of the result, which is made at its first use."""
        stager, (var,) = self.stager, self.eqn.outvars
        if var not in stager.env:
            stager.segment.close_serial()
            stager.env[var] = stager.segment.keep(None, physical_type(var.aval)[1], var.aval.shape)
        entry = stager.env[var]
        assert isinstance(entry, Pending)
        return entry.ref

    def memory(self, shape: tuple[int, ...], dtype: DType, begins_with: Literal) -> Var:
        """Returns memory of the program alone."""
        self.stager.segment.close_serial()
        ref = self.stager.segment.temporary(dtype, shape)
        self.begin(ref, begins_with)
        return ref

    def begin(self, ref: Var, value: Literal) -> None:
        """Says what memory holds before the first task that stores to it."""
        self.stager.segment.initial[ref] = value

    def rows(self, count: int, body: Callable[[Row], None]) -> None:
        """Appends a task that calls `body` for each of so many rows, in no order."""
        index, end = scalar_var(DType.i32, "i"), literal(count, DType.i32)
        self._append("range_for", index, end, body)

    def serial(self, body: Callable[[Row], None]) -> None:
        """Appends a task that calls `body` once."""
        self._append("serial", None, literal(0, DType.i32), body)

    def _append(self, kind: str, index: Var | None, end: Literal, body: Callable[[Row], None]) -> None:
        stager = self.stager
        stager.segment.close_serial()
        builder = Builder()
        builder.loc = loc = loc_of(self.eqn)
        variables = dict.fromkeys(v for v in self.eqn.invars if not is_literal(v))
        env = {v: stager.operand(builder, v) for v in variables}
        importer, zero = stager.importer(builder), literal(0, DType.i32)
        at = zero if index is None else index
        with builder.block() as made:
            if index is not None:
                importer.ranges.set_index(index, zero, end, literal(1, DType.i32))
            with importer.in_iteration(at):
                body(Row(importer, at, env))
        name = f"{stager.name}.{len(stager.segment.tasks)}"
        head = tuple(builder.current.eqns)
        stager.segment.append(Task(kind, index, zero, end, made.close(), head, name, loc))
