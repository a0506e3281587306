"""The stager: the meaning of a traced function's variables while it becomes XLA operations and calls of programs.

Buffers are functional outside tasks: a call takes contents and returns contents. XLA shares the memory of both if
nothing else needs the old content, so no copy is made. The rules of `staging` define what is done with each item.
"""

from __future__ import annotations

import functools
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.compose.call import call
from qdtrace.compose.foreseen import check_foreseen
from qdtrace.compose.items import reads_of
from qdtrace.compose.jaxprs import is_literal, physical_type
from qdtrace.compose.records import Telling
from qdtrace.compose.scalar_budget import scalar_budget
from qdtrace.compose.segment import (
    BufferState,
    Constant,
    Entry,
    Environment,
    Operand,
    Pending,
    Segment,
    is_concrete,
    load_all,
    only,
    with_token,
)
from qdtrace.compose.staged import note_programs
from qdtrace.compose.staged_program import StagedProgram
from qdtrace.compose.whole_arrays import whole_array
from qdtrace.errors import TraceValueError
from qdtrace.frozen import mutable
from qdtrace.ir.faults import may_fail
from qdtrace.ir.program import Atom, Block, Var, literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.trace.dtypes import as_jax, mode_for
from qdtrace.trace.importer.bodies import Bodies
from qdtrace.trace.importer.core import LARGE_CONSTANT, Importer
from qdtrace.trace.importer.values import ArrayRef, MemoryArray, RefValue, array_of
from qdtrace.trace.markers import REGIONS, read_p
from qdtrace.trace.physical import logical, physical
from qdtrace.trace.source import eqn_loc
from qdtrace.trace.tree import loc_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jax import Array
    from jax.typing import ArrayLike

    from qdtrace.compose.shown_records import Left
    from qdtrace.compose.source import Source
    from qdtrace.config import Options
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Program
    from qdtrace.limits import Limits
    from qdtrace.trace import jaxprs
    from qdtrace.trace.compat import JaxprEqn
    from qdtrace.trace.importer.values import EnvValue

    RuleOf = Callable[[JaxprEqn], Callable[["Stager", JaxprEqn], None]]

SMALL = 16
"""The most elements of a value that a serial task may compute; XLA computes larger ones."""


class Call(NamedTuple):
    """A call of a program."""

    staged: StagedProgram
    operands: Sequence[Array]
    outs: Sequence[Array]


@mutable(eq=False)
class Stager:
    """Stages items; holds the open segment and the entries of the function's variables."""

    name: str
    options: Options
    rule_of: RuleOf
    """Returns the rule that stages an item."""
    source_of: Callable[[Stager, Program], Source | None]
    """Returns the source of a program that the open segment has become, if it has one."""
    array_tasks: Callable[[Stager, JaxprEqn], None] | None = None
    """Stages an item once more, where array code between loops becomes tasks; None if XLA runs that."""
    env: Environment = field(default_factory=Environment)
    hints: dict[jaxprs.Atom, str] = field(default_factory=dict)
    """Names that the user gave to variables."""
    last_use: dict[jaxprs.Atom, int] = field(default_factory=dict)
    position: int = 0
    current: JaxprEqn | None = None
    """The item that is being staged."""
    segment: Segment = field(init=False)
    conditions: tuple[jaxprs.Atom, ...] = ()
    """Jaxpr atoms that must hold for an effect: conditions of enclosing `qd.when`s, and that no jump was taken."""
    bodies: Bodies = field(default_factory=Bodies)
    """Imported bodies of called functions."""
    in_place: bool = True
    """True if elementwise functions may overwrite operands that are dead afterwards."""
    given: Sequence[tuple[object, Limits]] = ()
    """Limits of arguments, by the tracers that stand for them."""
    memory_of: Mapping[object, object] = field(default_factory=dict[object, object])
    """Maps variables of returned buffers to a donated argument whose memory they may have."""
    tokens: list[object] = field(default_factory=list[object])
    """Results of programs with checks, to which the function's results are tied."""
    is_tied: bool = False
    is_body: bool = False
    """True if the items are the body of a loop around tasks."""
    left: list[Left] | None = None
    """Calls whose records are still to be shown, for whoever has the results; None if JAX shows them."""
    calls: list[Call] = field(default_factory=list["Call"])
    """The calls that were made."""
    items: Sequence[JaxprEqn] = ()
    leaves: Array | None = None
    """JAX bool of a `qd.while_` around loops, true if a `qd.break_if` was taken."""

    def __post_init__(self) -> None:
        self._open_segment()

    def _open_segment(self) -> None:
        self.segment = Segment(self.name, given=self.given, is_needed=self._is_needed)

    def _is_needed(self, entry: Entry) -> bool:
        """Returns whether something from here on reads a variable that stands for an entry."""
        return any(map(self.used_later, self.env.names(entry)))

    def another(self) -> Stager:
        """Returns a stager for the body of a loop around tasks."""
        made = Stager(self.name, self.options, self.rule_of, self.source_of, self.array_tasks, bodies=self.bodies)
        made.is_body = True
        return made

    def note_uses(self, items: Sequence[JaxprEqn], outvars: Sequence[jaxprs.Atom]) -> None:
        """Records the last position that reads each variable."""
        for position, item in enumerate(items):
            for v in reads_of(item):
                self.last_use[v] = position
        for v in outvars:
            if not is_literal(v):
                self.last_use[v] = len(items)

    def run(self, items: Sequence[JaxprEqn]) -> None:
        """Stages the items of the function in order."""
        self.items = items
        for self.position, item in enumerate(items):
            self.item(item)
        self.position = len(items)

    def item(self, item: JaxprEqn) -> None:
        """Stages one equation or region."""
        self.current = item
        self.rule_of(item)(self, item)

    def used_later(self, var: jaxprs.Atom) -> bool:
        """Returns whether an item from here on reads the variable."""
        return self.last_use.get(var, -1) >= self.position

    def value(self, atom: jaxprs.Atom) -> Any:
        """Returns the JAX value of a jaxpr atom; closes the segment if a task computes it."""
        if is_literal(atom):
            return atom.val
        entry = self.env[atom]
        if isinstance(entry, Pending):
            self.flush()
            entry = self.env[atom]
        if isinstance(entry, BufferState):
            return self.content(entry)
        assert isinstance(entry, Constant)
        return entry.value

    def known(self, atom: jaxprs.Atom) -> ArrayLike | None:
        """Returns the value of a jaxpr atom if it is known now, or None if a task computes it."""
        if is_literal(atom):
            return atom.val
        entry = self.env[atom]
        return entry.value if isinstance(entry, Constant) else None

    def content(self, state: BufferState) -> Array:
        """Returns the current content of a buffer."""
        self.segment.close_serial()
        ref = self.segment.refs.get(state)
        if ref is not None and (ref in self.segment.written or state.value is None):
            self.flush()
        if state.value is None:
            dtype = state.dtype.numpy
            with mode_for([dtype]):
                state.value = jnp.full(state.shape, 0 if state.fill is None else state.fill, dtype)
        return state.value

    def buffer_of(self, eqn: JaxprEqn) -> BufferState:
        """Returns the buffer that an equation accesses."""
        state = self.env[eqn.invars[0]]
        if not isinstance(state, BufferState):
            raise TraceValueError("needs a buffer made by this function", loc=eqn_loc(eqn))
        return state

    def replace_content(self, state: BufferState, value: Array) -> None:
        """Replaces the content of a buffer if the enclosing top-level `qd.when`s hold."""
        for atom in self.conditions:
            value = jnp.where(self.value(atom), value, self.content(state))
        if state in self.segment.refs:
            self.flush()
        state.value = value

    def flush(self) -> None:
        """Closes the segment by one call; buffers and pending values become JAX values."""
        segment = self.segment
        segment.close_serial()
        states = {s: v for s, v in segment.refs.items() if v in segment.written and self._is_needed(s)}
        waiting: dict[Pending, list[jaxprs.Atom]] = {}
        for pending in segment.pending:
            if variables := [v for v in self.env.names(pending) if self.used_later(v)]:
                waiting[pending] = variables
        results = [*states.values(), *(p.ref for p in waiting)]
        traced = segment.finish(results, self._donations(states))
        telling = Telling(traced, self.options)
        check_foreseen(traced, dict(segment.operands), debug=bool(self.options.debug))
        program = telling.program
        checks = segment.may_fail() and not (results and self.is_last())
        checks = checks and may_fail(StagedProgram(program, self.options).canonical.all_eqns)
        if checks:
            program = with_token(program, alone=not (results or telling))
        staged = StagedProgram(program, self.options, source=self.source_of(self, program))
        self._open_segment()
        if results or checks or telling:
            note_programs((staged,))
            operands = [value for _, value in segment.operands]
            outs = call(staged, operands)
            self.calls.append(Call(staged, operands, outs))
            if (left := telling.told(outs)) is not None:
                left.by_jax() if self.left is None else self.left.append(left)
            if checks:
                self.tokens.append(outs[-1])
            for state, out in zip(states, outs, strict=False):
                state.value = out
            for pending, out in zip(waiting, outs[len(states) :], strict=False):
                for var in waiting[pending]:
                    self.env[var] = Constant(logical(out, var.aval))

    def is_last(self) -> bool:
        """Returns whether the open segment's results are the function's, as XLA may drop others as unused."""
        return not self.is_body and all(i.primitive is read_p for i in self.items[self.position :])

    def tied(self, values: list[ArrayLike]) -> list[ArrayLike]:
        """Returns the values with a dependence on the programs that have checks, so that XLA runs those."""
        if self.segment.may_fail() or self.segment.serial is not None:
            self.flush()
        self.is_tied = bool(self.tokens)
        if not self.tokens or not values:
            return values
        tokens, self.tokens = self.tokens, []
        return list(jax.lax.optimization_barrier((*values, *tokens))[: len(values)])

    def _donations(self, states: Mapping[BufferState, Var]) -> dict[Var, Var]:
        """Maps new buffers to donated parameters, read by the open segment alone, whose memory they may have."""
        found: dict[Var, Var] = {}
        for state, ref in states.items() if self.memory_of else ():
            arguments = [self.memory_of[v] for v in self.env.names(state) if v in self.memory_of]
            if state.value is not None or not arguments:
                continue
            params = [v for v, value in self.segment.operands if value is arguments[0]]
            if len(params) == 1 and params[0].type == ref.type and not self._is_read_later(arguments[0]):
                found[ref] = params[0]
        return found

    def _is_read_later(self, value: object) -> bool:
        entries = self.env.items()
        return any(self.used_later(v) for v, e in entries if isinstance(e, BufferState | Constant) and e.value is value)

    def holds(self) -> Array:
        """Returns whether all enclosing conditions hold, as a JAX value."""
        return functools.reduce(jnp.logical_and, [self.value(v) for v in self.conditions], jnp.bool_(True))

    def importer(self, builder: Builder, items: Sequence[JaxprEqn] = ()) -> Importer:
        """Returns an importer of items that turns constants too large for registers into parameters."""
        made = functools.partial(Importer, builder, hoist=self.segment.hoisted, bodies=self.bodies)
        return made(scalar_budget=scalar_budget(items), bounds=self.options.bounds, in_place=self.in_place)

    def scalars(self, builder: Builder, entry: Entry, atom: jaxprs.Atom | None = None) -> np.ndarray:
        """Returns a small value as graph scalars, loaded by `builder`."""
        if isinstance(entry, Pending):
            return load_all(builder, entry.ref) if entry.atoms is None else entry.atoms
        if isinstance(entry, Operand):
            return load_all(builder, entry.ref)
        assert isinstance(entry, Constant)
        value = physical(entry.value)
        if is_concrete(value):
            array = np.asarray(value)
            return array_of((literal(x, DType.of(array.dtype)) for x in array.flat), array.shape)
        return load_all(builder, self.segment.param_of(atom, value))

    def operand(self, builder: Builder, atom: jaxprs.Atom) -> EnvValue:
        """Returns the importer's form of a value from outside a region."""
        entry = self.env[atom]
        if isinstance(entry, BufferState):
            return RefValue(self.segment.ref(entry))
        physical_type(atom.aval, self.current)
        if self.array_tasks and atom.aval.shape and (memory := whole_array(self.segment, entry, atom)) is not None:
            return memory
        if isinstance(entry, Operand):
            shape = ref_type(entry.ref).shape
            if shape and int(np.prod(shape)) > 4:
                return ArrayRef(entry.ref)
        if isinstance(entry, Constant):
            value = physical(entry.value)
            small = np.ndim(value) == 0 or (np.size(value) <= 4 and not is_concrete(value))
            if not small and not (is_concrete(value) and np.size(value) <= LARGE_CONSTANT):
                return ArrayRef(self.segment.param_of(atom, as_jax(value)))
        return self.scalars(builder, entry, atom)

    def scalar(self, builder: Builder, atom: jaxprs.Atom) -> Atom:
        """Returns a rank-0 jaxpr atom as a graph scalar."""
        if is_literal(atom):
            array = np.asarray(atom.val, atom.aval.dtype)
            return literal(array, DType.of(array.dtype))
        return only(self.scalars(builder, self.env[atom], atom))

    def predicate(self, builder: Builder) -> Atom:
        """Returns whether the enclosing conditions hold, as a graph scalar."""
        condition: Atom | None = None
        for atom in self.conditions:
            one = self.scalar(builder, atom)
            condition = one if condition is None else builder("and", condition, one)
        assert condition is not None
        return condition

    def serial(self, item: JaxprEqn) -> None:
        """Stages a small equation or region into a serial task."""
        with self.segment.serial_builder(loc_of(item)) as builder:
            read = dict.fromkeys(v for v in item.invars if not is_literal(v))
            env = {v: self.operand(builder, v) for v in read}
            importer = self.importer(builder)
            kept = [v for v in item.outvars if self.used_later(v)]
            if self.conditions and item.effects:
                self._guarded(builder, importer, item, env, kept)
                self.segment.note(item, self.conditions)
                return
            _import(importer, item, env)
            for v in kept:
                value = env.get(v)
                if isinstance(value, np.ndarray):
                    self.env[v] = self.segment.keep(value, physical_type(v.aval)[1])
                elif isinstance(value, MemoryArray):
                    self.env[v] = self._deposit(importer, v, value)
            self.segment.note(item, self.conditions)

    def _guarded(
        self, builder: Builder, importer: Importer, item: JaxprEqn, env: dict[jaxprs.Var, Any], kept: list[jaxprs.Var]
    ) -> None:
        """Stages an item with effects under a top-level `qd.when`; its results are zero if it does not run."""
        with builder.block() as then:
            _import(importer, item, env)
            results = [self._deposit(importer, v, env[v]) for v in kept]
        self.segment.initial.update({p.ref: literal(0, p.ref.dtype) for p in results})
        builder.emit("if", self.predicate(builder), blocks=(then.close(), Block()))
        for v, pending in zip(kept, results, strict=True):
            self.env[v] = pending

    def _deposit(self, importer: Importer, var: jaxprs.Atom, value: Any) -> Pending:
        """Stores a value of the open serial task at its definition and returns it as pending."""
        shape, dtype = physical_type(var.aval)
        pending = self.segment.keep(None, dtype, shape)
        if isinstance(value, np.ndarray):
            for at in np.ndindex(*shape):
                importer.store_at(pending.ref, only(value[at]), [importer.index(k) for k in at])
        else:
            importer.loop_nest(value.shape, lambda at: importer.store_at(pending.ref, importer.element(value, at), at))
        return pending


def _import(importer: Importer, item: JaxprEqn, env: dict[jaxprs.Var, Any]) -> None:
    if item.primitive in REGIONS:
        importer.body([item], env)
    else:
        importer.eqn(item, env)
