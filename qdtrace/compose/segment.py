"""A program under construction: the tasks between two points where XLA code needs their results.

While a function is staged, buffers are either JAX values or references of the open segment. A segment turns values
that its tasks use into parameters, collects tasks made of regions, and at its end becomes one call.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import field, replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
from jax.core import Tracer

from qdtrace.analysis.bounding import bounding
from qdtrace.compose.array_limits import limits_of
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.copies import copy_task
from qdtrace.ir.faults import may_fail
from qdtrace.ir.memory import written
from qdtrace.ir.program import Atom, Literal, Program, Task, Var, is_global, literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_eqns
from qdtrace.trace import compat
from qdtrace.trace.dtypes import as_jax
from qdtrace.trace.importer.values import array_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from jax import Array
    from jax.typing import ArrayLike
    from typing_extensions import TypeIs

    from qdtrace.errors import Loc
    from qdtrace.limits import Limits
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn


@mutable(eq=False)
class BufferState:
    """A buffer of the function. Its content is `value`, unless a task of the open segment wrote it."""

    shape: tuple[int, ...]
    dtype: DType
    value: Array | None = None
    """The content as a JAX value; None: every element is `fill`, or undefined if that is None too."""
    fill: Any = None
    hint: str = "b"


@mutable(eq=False)
class Constant:
    """A value of the function that JAX has computed."""

    value: Any


@mutable(eq=False)
class Pending:
    """A small value that a serial task computes and keeps in a temporary buffer."""

    ref: Var
    atoms: np.ndarray | None
    """The value's scalars while the task is open."""
    stored: bool = False
    """True if a task stores it."""


@mutable(eq=False)
class Operand:
    """A parameter of a program that is staged again from its items."""

    ref: Var


@frozen
class Step:
    """An item that a segment made tasks of, with the conditions around it."""

    item: JaxprEqn
    """An equation or a region; the region of an outermost `qd.range` is a task."""
    conditions: tuple[jaxprs.Atom, ...]


Entry = Constant | BufferState | Pending | Operand


class Environment(dict["jaxprs.Atom", Entry]):
    """Maps jaxpr variables to entries, and buffers and pending values back to their variables."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Entry, dict[jaxprs.Atom, None]] = {}

    def __setitem__(self, var: jaxprs.Atom, entry: Entry) -> None:
        before = self.get(var)
        if before is not None:
            self._names.get(before, {}).pop(var, None)
        if not isinstance(entry, Constant):
            self._names.setdefault(entry, {})[var] = None
        super().__setitem__(var, entry)

    def names(self, entry: Entry) -> Iterable[jaxprs.Atom]:
        """Returns the variables that stand for an entry now."""
        return self._names.get(entry, ())


@mutable(eq=False)
class Segment:
    """The tasks collected so far and the references that they use."""

    name: str
    operands: list[tuple[Var, Array]] = field(default_factory=list)
    buffers: dict[Var, None] = field(default_factory=dict)
    initial: dict[Var, Literal] = field(default_factory=dict)
    """Initial contents of buffers that are constants."""
    tasks: list[Task] = field(default_factory=list)
    refs: dict[BufferState, Var] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    unsettled: list[Pending] = field(default_factory=list)
    """Pending values of the open serial task."""
    written: set[Var] = field(default_factory=set)
    serial: Builder | None = None
    values: dict[int, Var] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    """The items that the tasks were made of."""
    hoists_tracer: bool = False
    """True if a constant of an inner jaxpr is a traced value of the function around it."""
    inputs: dict[jaxprs.Atom, Var] = field(default_factory=dict)
    """Parameters by the jaxpr variables whose values they hold."""
    fills: dict[Var, Var] = field(default_factory=dict)
    """Parameters with the traced values that buffers are filled with."""
    counter: Iterator[int] = field(default_factory=count)
    given: Sequence[tuple[object, Limits]] = ()
    """Limits of arguments, by the tracers that stand for them."""
    is_needed: Callable[[Pending], bool] = lambda _: True
    """Returns whether something after the open serial task reads a value that it computes."""

    # ------------------------------------------------------------------ references
    def param(self, value: Array) -> Var:
        """Returns the read-only parameter with the content of a JAX value; there is one per value."""
        var = self.values.get(id(value))
        if var is None:
            var = self.values[id(value)] = self._new_param(value, "c")
        return var

    def param_of(self, var: jaxprs.Atom | None, value: Array) -> Var:
        """Returns the parameter with the value of a jaxpr variable; `var` is None if no variable stands for it."""
        found = self.param(value)
        if var is not None:
            self.inputs[var] = found
        return found

    def hoisted(self, array: ArrayLike) -> Var:
        """Returns the parameter of an array that is a constant of an inner jaxpr."""
        if isinstance(array, Tracer):
            self.hoists_tracer = True
            return self.param(as_jax(array))
        with compat.outside_of_traces():  # under a jax.jit or jax.vjp it would be a tracer, and programs are kept
            return self.param(as_jax(array))

    def _new_param(self, value: Array, hint: str) -> Var:
        var = ref_var(DType.of(value.dtype), value.shape, hint)
        self.operands.append((var, value))
        return var

    def ref(self, state: BufferState) -> Var:
        """Returns the reference of a buffer; its first use adds the content as a parameter."""
        var = self.refs.get(state)
        if var is not None:
            return var
        if state.value is not None:
            var = self._new_param(state.value, state.hint)
        else:
            var = self.temporary(state.dtype, state.shape, state.hint)
            if is_concrete(state.fill):
                self.initial[var] = literal(state.fill, var.dtype)
            elif state.fill is not None:
                given = self.fills[var] = state.fill.ref if isinstance(state.fill, Operand) else self.param(state.fill)
                self.append(replace(copy_task(given, var), name=f"fill_{var.hint}"), during_serial=True)
        self.refs[state] = var
        return var

    def temporary(self, dtype: DType, shape: tuple[int, ...], hint: str = "t") -> Var:
        """Returns a new buffer local to the program."""
        var = ref_var(dtype, shape, hint)
        self.buffers[var] = None
        return var

    # ------------------------------------------------------------------ tasks
    def note(self, item: JaxprEqn, conditions: tuple[jaxprs.Atom, ...]) -> None:
        """Records the item that tasks were made of."""
        self.steps.append(Step(item, conditions))

    def append(self, task: Task, *, during_serial: bool = False) -> None:
        """Adds a task at the end, after the open serial task."""
        if not during_serial:
            self.close_serial()
        self.tasks.append(task)
        self.written.update(filter(is_global, written(task.all_eqns)))

    @contextmanager
    def serial_builder(self, loc: Loc | None = None) -> Generator[Builder]:
        """Yields the builder of the serial task at the current end, and opens one if there is none."""
        if self.serial is None:
            self.serial = Builder()
        self.serial.loc = loc
        yield self.serial

    def may_fail(self) -> bool:
        """Returns whether an iteration of a task may fail: checks in a head concern the launch alone."""
        return any(may_fail(walk_eqns(task.body)) for task in self.tasks)

    def close_serial(self) -> None:
        """Ends the open serial task: values that others may need are stored in their temporaries."""
        if self.serial is None:
            return
        builder, self.serial = self.serial, None
        for value in self.unsettled:
            if value.atoms is not None and self.is_needed(value):
                for position in np.ndindex(*value.atoms.shape):
                    at = [literal(k, DType.i32) for k in position]
                    builder.store(value.ref, only(value.atoms[position]), *at)
                value.stored = True
            value.atoms = None
            if not value.stored:
                del self.buffers[value.ref]
        self.unsettled.clear()
        zero = literal(0, DType.i32)
        body = builder.current.close()
        self.append(Task("serial", None, zero, zero, body, name=f"{self.name}.serial{next(self.counter)}"))

    def keep(self, atoms: np.ndarray | None, dtype: DType, shape: tuple[int, ...] = ()) -> Pending:
        """Records a value of the open serial task and returns it; without its scalars the caller stores it."""
        shape = shape if atoms is None else atoms.shape
        pending = Pending(self.temporary(dtype, shape), atoms, stored=atoms is None)
        self.pending.append(pending)
        self.unsettled.append(pending)
        return pending

    def finish(self, results: list[Var], donated_from: Mapping[Var, Var]) -> Program:
        """Returns the program; its results are those asked for and then the other parameters that were written."""
        self.close_serial()
        params = tuple(v for v, _ in self.operands)
        given = set(results)
        extra = [v for v in params if v in self.written and v not in given]
        tasks, returned = tuple(self.tasks), (*results, *extra)
        made = Program(self.name, params, tuple(self.buffers), tasks, returned, self.initial, donated_from)
        integers = [(v, value) for v, value in self.operands if v.dtype.is_integer and v not in self.written]
        used = bounding(made) if integers else ()
        limits = {v: found for v, value in integers if v in used and (found := self._limits_of(value)) is not None}
        return replace(made, limits=limits) if limits else made

    def _limits_of(self, value: object) -> Limits | None:
        return next((limits for tracer, limits in self.given if tracer is value), None) or limits_of(value)


def with_token(program: Program, *, alone: bool) -> Program:
    """Returns the program with one more, last result whose existence shows that it has run; with `alone` it has no
    other result, as nobody uses those."""
    token = ref_var(DType.i32, (), "checked")
    results = (token,) if alone else (*program.results, token)
    initial = {**program.initial, token: literal(0, DType.i32)}
    return replace(program, buffers=(*program.buffers, token), results=results, initial=initial)


def only(element: Any) -> Atom:
    """Returns the graph scalar that an element of an object array is, or that an array of rank 0 holds."""
    atom: Any = element[()] if isinstance(element, np.ndarray) else element
    return atom


def is_concrete(value: object) -> TypeIs[bool | int | float | np.generic | np.ndarray]:
    """Returns whether a value is known while tracing: a NumPy array, or a NumPy or Python scalar."""
    return isinstance(value, bool | int | float | np.generic | np.ndarray)


def load_all(builder: Builder, ref: Var) -> np.ndarray:
    """Loads every element of a small reference, as an object array of graph scalars."""
    shape = ref_type(ref).shape
    places = ([literal(k, DType.i32) for k in position] for position in np.ndindex(*shape))
    return array_of((builder.load(ref, *at) for at in places), shape)
