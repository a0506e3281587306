"""A program under construction: the tasks between two points where XLA code needs their results.

While a function is staged, buffers are either JAX values or references of the open segment. A segment turns
values that its tasks use into parameters, makes tasks out of regions, and at its end becomes one call.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.copies import each_element
from qdtrace.ir.faults import may_fail
from qdtrace.ir.primitives import WRITES
from qdtrace.ir.program import Atom, Program, Task, Var, literal, ref_type
from qdtrace.ir.types import DType, RefType, Space
from qdtrace.ir.walk import walk_eqns, walk_task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping

    from qdtrace.errors import Loc


@dataclass(eq=False)
class BufferState:
    """A buffer of the call. Its content is `value`, unless a task of the open segment wrote it."""

    shape: tuple[int, ...]
    dtype: DType
    value: Any = None
    """The content as a JAX value; None: every element is `fill`, or undefined when that is None too."""
    fill: Any = None
    hint: str = "b"


@dataclass(eq=False)
class Constant:
    """A JAX value."""

    value: Any


@dataclass(eq=False)
class Pending:
    """A small value computed by the serial task that is being built, and kept in a temporary buffer."""

    ref: Var
    atoms: np.ndarray | None
    """The value's scalars while that task is open."""
    stored: bool = False
    """Whether a task stores it."""


@dataclass(eq=False)
class Operand:
    """A parameter of the program: in a program that is staged again from its items."""

    ref: Var


@dataclass(frozen=True)
class Step:
    """What a segment made tasks of."""

    item: Any
    """An equation or a region; the region of an outermost `qd.range` is a task."""
    conditions: tuple[Any, ...]


Entry = Constant | BufferState | Pending | Operand


class Environment(dict[Any, Entry]):
    """What jaxpr variables stand for, and the variables of a buffer or of a pending value."""

    def __init__(self) -> None:
        super().__init__()
        self._names: dict[Entry, dict[Any, None]] = {}

    def __setitem__(self, var: Any, entry: Entry) -> None:
        before = self.get(var)
        if before is not None:
            self._names.get(before, {}).pop(var, None)
        if not isinstance(entry, Constant):
            self._names.setdefault(entry, {})[var] = None
        super().__setitem__(var, entry)

    def names(self, entry: Entry) -> Iterable[Any]:
        """The variables that stand for this entry now."""
        return self._names.get(entry, ())


@dataclass(eq=False)
class Segment:
    """Tasks collected so far and the references they use."""

    name: str
    operands: list[tuple[Var, Any]] = field(default_factory=list)
    buffers: dict[Var, None] = field(default_factory=dict)
    tasks: list[Task] = field(default_factory=list)
    refs: dict[BufferState, Var] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    unsettled: list[Pending] = field(default_factory=list)
    """Of the open serial task."""
    written: set[Var] = field(default_factory=set)
    serial: Builder | None = None
    values: dict[int, Var] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    """What the tasks were made of."""
    hoists_tracer: bool = False
    """A constant of an inner jaxpr is a traced value of the function around it."""
    inputs: dict[Any, Var] = field(default_factory=dict)
    """Parameters by the variables whose values they are."""
    fills: dict[Var, Var] = field(default_factory=dict)
    """Parameters that the fills of buffers are loaded from."""
    counter: Iterator[int] = field(default_factory=count)
    is_needed: Callable[[Pending], bool] = lambda _: True
    """Whether something after the open serial task reads a value that it computes."""

    # ------------------------------------------------------------------ references
    def param(self, value: Any, hint: str = "c") -> Var:
        """A read-only parameter with the content of a JAX value; one per value."""
        var = self.values.get(id(value))
        if var is None:
            var = self._new_param(value, hint)
            self.values[id(value)] = var
        return var

    def param_of(self, var: Any, value: Any) -> Var:
        """The parameter with the value of a jaxpr variable; None for a value that none stands for."""
        found = self.param(value)
        if var is not None:
            self.inputs[var] = found
        return found

    def hoisted(self, array: Any) -> Var:
        """The parameter of an array that an inner jaxpr has as a constant."""
        if isinstance(array, Tracer):
            self.hoists_tracer = True
        with jax.ensure_compile_time_eval():  # under a jax.jit it would be a tracer
            return self.param(jnp.asarray(array))

    def _new_param(self, value: Any, hint: str) -> Var:
        var = ref_var(DType.of(value.dtype), value.shape, hint)
        self.operands.append((var, value))
        return var

    def ref(self, state: BufferState) -> Var:
        """The reference of a buffer; its first use brings the content in."""
        var = self.refs.get(state)
        if var is not None:
            return var
        if state.value is not None:
            var = self._new_param(state.value, state.hint)
        else:
            var = self.temporary(state.dtype, state.shape, state.hint)
            if state.fill is not None:
                self._fill(var, state.fill)
        self.refs[state] = var
        return var

    def temporary(self, dtype: DType, shape: tuple[int, ...], hint: str = "t") -> Var:
        """A buffer local to the program."""
        var = ref_var(dtype, shape, hint)
        self.buffers[var] = None
        return var

    def _fill(self, var: Var, fill: Any) -> None:
        """A task that stores one value everywhere; one flat loop over all axes."""
        builder = Builder()
        value = literal(fill, var.dtype) if is_concrete(fill) else builder.load(self._filling(var, fill))
        task = each_element(var, lambda b, at: b.store(var, value, *at), f"fill_{var.hint}")
        self.append(replace(task, head=tuple(builder.current.eqns)), during_serial=True)

    def _filling(self, var: Var, fill: Any) -> Var:
        param = self.fills[var] = fill.ref if isinstance(fill, Operand) else self.param(fill)
        return param

    # ------------------------------------------------------------------ tasks
    def note(self, item: Any, conditions: tuple[Any, ...]) -> None:
        """Remembers what tasks were made of."""
        self.steps.append(Step(item, conditions))

    def append(self, task: Task, *, during_serial: bool = False) -> None:
        """Adds a task at the end; what was being built serially comes before it."""
        if not during_serial:
            self.close_serial()
        self.tasks.append(task)
        for eqn in walk_task(task):
            if eqn.primitive.effects & WRITES:
                target = eqn.invars[0]
                if isinstance(target.type, RefType) and target.type.space is Space.GLOBAL:
                    self.written.add(target)  # type: ignore[arg-type]

    @contextmanager
    def serial_builder(self, loc: Loc | None = None) -> Generator[Builder]:
        """The builder of the serial task at the current end; opened when there is none."""
        if self.serial is None:
            self.serial = Builder()
        self.serial.loc = loc
        yield self.serial

    def may_fail(self) -> bool:
        """Whether an iteration of a task may fail: what is checked in a head is about the launch alone."""
        return any(may_fail(walk_eqns(task.body)) for task in self.tasks)

    def close_serial(self) -> None:
        """Ends the open serial task: values others may need go to their temporaries."""
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
        """Remembers a value of the open serial task; without its scalars the caller stores it."""
        shape = shape if atoms is None else atoms.shape
        pending = Pending(self.temporary(dtype, shape), atoms, stored=atoms is None)
        self.pending.append(pending)
        self.unsettled.append(pending)
        return pending

    def finish(self, results: list[Var], donated_from: Mapping[Var, Var]) -> Program:
        """The program; results are what is asked for and, after it, parameters that were written."""
        self.close_serial()
        params = tuple(v for v, _ in self.operands)
        given = set(results)
        extra = [v for v in params if v in self.written and v not in given]
        tasks, returned = tuple(self.tasks), (*results, *extra)
        return Program(self.name, params, tuple(self.buffers), tasks, returned, donated_from=donated_from)


def with_token(program: Program, *, alone: bool) -> Program:
    """The program with one more result, behind the others, that says it has run; `alone`: with no other one, as what it
    stores is of no use."""
    token = ref_var(DType.i32, (), "checked")
    results = (token,) if alone else (*program.results, token)
    initial = {**program.initial, token: literal(0, DType.i32)}
    return replace(program, buffers=(*program.buffers, token), results=results, initial=initial)


def only(element: Any) -> Atom:
    """An element of an object array of graph scalars (or the array itself, of rank 0)."""
    atom: Any = element[()] if isinstance(element, np.ndarray) else element
    return atom


def is_concrete(value: Any) -> bool:
    """True for a NumPy or Python scalar, whose value is known while tracing."""
    return isinstance(value, bool | int | float | np.generic | np.ndarray)


def load_all(builder: Builder, ref: Var) -> np.ndarray:
    """Every element of a small reference, as an object array of graph scalars."""
    shape = ref_type(ref).shape
    out = np.empty(shape, object)
    for position in np.ndindex(*shape):
        out[position] = builder.load(ref, *(literal(k, DType.i32) for k in position))
    return out


def hints_of(hints: Mapping[str, object], *names: str) -> dict[str, object]:
    """The launch hints among all keyword arguments of a range."""
    return {k: v for k, v in hints.items() if k in names and v is not None}
