"""Staging: a traced function becomes XLA operations and calls of programs, in program order.

The items of the traced function are walked once, inside a JAX trace:

- an outermost `qd.range` becomes a task of the open segment;
- scalar loads, stores and accumulations between loops go into serial tasks of the segment;
- array code is evaluated by JAX, that is, left to XLA. When it needs what a task computed, the segment is closed
  into one call first;
- `qd.while_` around loops becomes `lax.while_loop` over the buffers it uses.

Buffers are functional outside tasks: a call takes contents and gives contents. XLA shares the memory of both where
nothing else needs the old content, so no copy is made.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from qdtrace.compose.call import StagedProgram, call
from qdtrace.compose.donation import pair_results
from qdtrace.compose.items import (
    alone,
    begin_marker,
    body_inputs,
    body_of,
    has_jump,
    has_tasks,
    reads_of,
    region_inputs,
)
from qdtrace.compose.jaxprs import (
    bind_eqn,
    has_marker,
    is_literal,
    largest_size,
    logical,
    physical,
    physical_type,
)
from qdtrace.compose.large_access import safe_indices
from qdtrace.compose.loops import loop_of_tasks
from qdtrace.compose.segment import (
    BufferState,
    Constant,
    Entry,
    Environment,
    Pending,
    Segment,
    hints_of,
    is_concrete,
    load_all,
    only,
)
from qdtrace.compose.staged import note_programs
from qdtrace.compose.task_range import task_range
from qdtrace.errors import TraceValueError, UnsupportedError
from qdtrace.ir.builder import Builder, scalar_var
from qdtrace.ir.program import Atom, Task, Var, literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_eqns
from qdtrace.trace import compat
from qdtrace.trace.importer.bodies import Bodies
from qdtrace.trace.importer.core import Importer
from qdtrace.trace.importer.values import ArrayRef, MemoryArray, RefValue
from qdtrace.trace.loops import too_many
from qdtrace.trace.regions import Region
from qdtrace.trace.source import eqn_loc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from qdtrace.config import Options

SMALL = 16
"""Values of up to this many elements may be computed in a serial task; larger ones are XLA's."""
LAUNCH_HINTS = ("block_dim", "unroll", "fuse", "refill")


def stage(
    root: Region,
    args: Sequence[Any],
    names: Sequence[str],
    name: str,
    options: Options,
    donated: Sequence[Any] = (),
) -> list[Any]:
    """Evaluates a traced function on JAX values (usually tracers); gives its flat outputs.

    `names` are those of the arguments, for printed graphs and errors. The memory of those in `donated` is for results.
    """
    stager = Stager(name, options, hints=dict(zip(root.params, names, strict=True)))
    stager.memory_of = pair_results(root, donated)
    for var, const in root.constants.items():
        stager.env[var] = Constant(const)
    for var, arg in zip(root.params, args, strict=True):
        stager.env[var] = Constant(arg)
    stager.note_uses(root.items, root.results)
    stager.run(root.items)
    return stager.tied([stager.value(v) for v in root.results])


@dataclass(eq=False)
class Stager:
    """Walks items; see the module docstring."""

    name: str
    options: Options
    env: Environment = field(default_factory=Environment)
    hints: dict[Any, str] = field(default_factory=dict)
    """Names of variables that the user gave."""
    last_use: dict[Any, int] = field(default_factory=dict)
    position: int = 0
    current: Any = None
    """The item that is being staged."""
    segment: Segment = field(init=False)
    conditions: tuple[Any, ...] = ()
    """Jaxpr atoms that must hold for an effect to happen: of the enclosing `qd.when`s, and that no jump was taken."""
    bodies: Bodies = field(default_factory=Bodies)
    """Bodies of called functions that were imported."""
    memory_of: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    """For variables of buffers that are results: a donated argument whose memory they may have."""
    tokens: list[Any] = field(default_factory=list[Any])
    """Results of programs that do nothing but check."""
    leaves: Any = None
    """In a `qd.while_` around loops: whether a `qd.break_if` was taken (a JAX bool)."""

    def __post_init__(self) -> None:
        self._open_segment()

    def _open_segment(self) -> None:
        self.segment = Segment(self.name, is_needed=self._is_needed)

    def _is_needed(self, pending: Pending) -> bool:
        return any(map(self.used_later, self.env.names(pending)))

    def another(self) -> Stager:
        """A stager for the body of a loop around tasks."""
        return Stager(self.name, self.options, bodies=self.bodies)

    # ------------------------------------------------------------------ walking
    def note_uses(self, items: Sequence[Any], outvars: Sequence[Any]) -> None:
        """Remembers the last position that reads each variable."""
        for position, item in enumerate(items):
            for v in reads_of(item):
                self.last_use[v] = position
        for v in outvars:
            if not is_literal(v):
                self.last_use[v] = len(items)

    def run(self, items: Sequence[Any]) -> None:
        """Stages the items of the function in order."""
        for self.position, item in enumerate(items):
            self.item(item)
        self.position = len(items)

    def item(self, item: Any) -> None:
        """Stages one equation or region."""
        self.current = item
        if isinstance(item, Region):
            if item.kind == "for":
                self.task(item)
            elif item.kind == "while" and has_tasks(item):
                loop_of_tasks(self, item)
            elif item.kind == "when" and (has_tasks(item) or has_jump(item, "qd_break", "qd_continue")):
                self.conditional_tasks(item)
            else:
                self.serial(item)
            return
        rule = _RULES.get(item.primitive.name)
        if rule is not None:
            rule(self, item)
        elif compat.has_markers(item.effects):
            self.control_flow(item)
        else:
            self.pure(item)

    def used_later(self, var: Any) -> bool:
        """True when an item from here on reads the variable."""
        return self.last_use.get(var, -1) >= self.position

    # ------------------------------------------------------------------ values
    def value(self, atom: Any) -> Any:
        """The JAX value of a jaxpr atom; closes the segment when a task computes it."""
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

    def known(self, atom: Any) -> Any:
        """The value of a jaxpr atom where it is known now; None where a task computes it."""
        if is_literal(atom):
            return atom.val
        entry = self.env[atom]
        return entry.value if isinstance(entry, Constant) else None

    def content(self, state: BufferState) -> Any:
        """The whole content of a buffer now."""
        self.segment.close_serial()
        ref = self.segment.refs.get(state)
        if ref is not None and (ref in self.segment.written or state.value is None):
            self.flush()
        if state.value is None:
            state.value = jnp.full(state.shape, 0 if state.fill is None else state.fill, state.dtype.numpy)
        return state.value

    def flush(self) -> None:
        """Closes the segment: one call; buffers and pending values become JAX values."""
        segment = self.segment
        segment.close_serial()
        states = {s: v for s, v in segment.refs.items() if v in segment.written and self._is_live(s)}
        waiting: dict[Pending, list[Any]] = {}
        for pending in segment.pending:
            if variables := [v for v in self.env.names(pending) if self.used_later(v)]:
                waiting[pending] = variables
        results = [*states.values(), *(p.ref for p in waiting)]
        checks = not results and any(map(_has_user_check, segment.tasks))
        if checks:
            results.append(segment.temporary(DType.i32, (), "checked"))
        program = segment.finish(results, self._takes_over(states))
        self._open_segment()
        if checks:
            program = replace(program, initial={results[0]: literal(0, DType.i32)})
        if results:
            staged = StagedProgram(program, self.options)
            note_programs((staged,))
            outs = call(staged, [value for _, value in segment.operands])
            if checks:
                self.tokens += outs
            for state, out in zip(states, outs, strict=False):
                state.value = out
            for pending, out in zip(waiting, outs[len(states) :], strict=False):
                for var in waiting[pending]:
                    self.env[var] = Constant(logical(out, var.aval))

    def tied(self, values: list[Any]) -> list[Any]:
        """The values, which cannot be had without what checks only: programs of checks run with them."""
        if any(map(_has_user_check, self.segment.tasks)) or self.segment.serial is not None:
            self.flush()
        if not self.tokens or not values:
            return values
        tokens, self.tokens = self.tokens, []
        return list(jax.lax.optimization_barrier((*values, *tokens))[: len(values)])

    def _is_live(self, state: BufferState) -> bool:
        return any(map(self.used_later, self.env.names(state)))

    def _takes_over(self, states: Mapping[BufferState, Var]) -> dict[Var, Var]:
        """New buffers that may have the memory of a donated argument, which only the open segment reads."""
        found: dict[Var, Var] = {}
        for state, ref in states.items() if self.memory_of else ():
            arguments = [self.memory_of[v] for v in self.env.names(state) if v in self.memory_of]
            if state.value is not None or not arguments:
                continue
            params = [v for v, value in self.segment.operands if value is arguments[0]]
            if len(params) == 1 and params[0].type == ref.type and not self._is_read_later(arguments[0]):
                found[ref] = params[0]
        return found

    def _is_read_later(self, value: Any) -> bool:
        entries = self.env.items()
        return any(self.used_later(v) for v, e in entries if not isinstance(e, Pending) and e.value is value)

    # ------------------------------------------------------------------ graph side
    def importer(self, builder: Builder) -> Importer:
        """An importer that puts constants too large for registers into parameters."""
        return Importer(
            builder,
            hoist=lambda array: self.segment.param(jnp.asarray(array)),
            bodies=self.bodies,
            bounds=self.options.bounds,
        )

    def scalars(self, builder: Builder, entry: Entry) -> np.ndarray:
        """A small value as graph scalars, loaded by `builder`."""
        if isinstance(entry, Pending):
            return load_all(builder, entry.ref) if entry.atoms is None else entry.atoms
        assert isinstance(entry, Constant)
        value = physical(entry.value)
        if is_concrete(value):
            array = np.asarray(value)
            out = np.empty(array.shape, object)
            for k in np.ndindex(*array.shape):
                out[k] = literal(array[k], DType.of(array.dtype))
            return out
        return load_all(builder, self.segment.param(value))

    def operand(self, builder: Builder, atom: Any) -> Any:
        """What the importer sees for a value from outside a region."""
        entry = self.env[atom]
        if isinstance(entry, BufferState):
            return RefValue(self.segment.ref(entry))
        physical_type(atom.aval, self.current)
        if isinstance(entry, Constant):
            value = physical(entry.value)
            small = np.ndim(value) == 0 or (np.size(value) <= 4 and not is_concrete(value))
            if not small and not (is_concrete(value) and np.size(value) <= SMALL):
                return ArrayRef(self.segment.param(jnp.asarray(value)))
        return self.scalars(builder, entry)

    def scalar(self, builder: Builder, atom: Any) -> Atom:
        """A rank-0 jaxpr atom as a graph scalar."""
        if is_literal(atom):
            array = np.asarray(atom.val, atom.aval.dtype)
            return literal(array, DType.of(array.dtype))
        return only(self.scalars(builder, self.env[atom]))

    # ------------------------------------------------------------------ tasks
    def task(self, region: Region) -> None:
        """An outermost `qd.range`."""
        hints = dict(region.hints)
        if hints.get("serial"):
            self.serial(region)
            return
        self.segment.close_serial()
        builder = Builder()
        builder.loc = region.loc
        marker = begin_marker(region)
        index_var: Any = marker.outvars[0]
        dtype = DType.of(index_var.aval.dtype)
        start, stop, step = (builder.convert(self.scalar(builder, v), dtype) for v in marker.invars[:3])
        fits = [self.scalar(builder, v) for v in marker.invars[3:]]
        if self.conditions:
            runs = self.predicate(builder)
            stop = builder("select", runs, stop, start)
            fits = [builder("or", builder("not", runs), f) for f in fits]
        for condition in fits:
            builder.emit("check", condition, message=too_many(dtype.numpy))
        index = scalar_var(dtype, "i")
        env = {v: self.operand(builder, v) for v in body_inputs(region) if v is not index_var}
        importer = self.importer(builder)
        span = task_range(builder, importer.ranges, start, stop, step, region.loc)
        with builder.block() as body:
            at = span.index(builder, index)
            env[index_var] = _rank0(at)
            importer.ranges.set_index(at, start, stop, step)
            importer.region(body_of(region), env)
        name = str(hints.get("name") or f"{self.name}.{len(self.segment.tasks)}")
        head = tuple(builder.current.eqns)
        launch, ends = hints_of(hints, *LAUNCH_HINTS), (span.first, span.last)
        self.segment.append(Task("range_for", index, *ends, body.close(), head, name, region.loc, launch))

    def predicate(self, builder: Builder) -> Atom:
        """Whether the enclosing conditions hold."""
        condition: Atom | None = None
        for atom in self.conditions:
            one = self.scalar(builder, atom)
            condition = one if condition is None else builder("and", condition, one)
        assert condition is not None
        return condition

    def conditional_tasks(self, region: Region) -> None:
        """A top-level `qd.when` around loops: each of its tasks runs over an empty range when it is false."""
        condition = begin_marker(region).invars[0]
        self.conditions = (*self.conditions, condition)
        for item in region.items:
            self.item(item)
        at = self.conditions.index(condition)
        self.conditions = (*self.conditions[:at], *self.conditions[at + 1 :])

    def serial(self, item: Any) -> None:
        """A small equation or region that runs once, in order, in one thread."""
        loc = item.loc if isinstance(item, Region) else eqn_loc(item)
        with self.segment.serial_builder(loc) as builder:
            env = {v: self.operand(builder, v) for v in dict.fromkeys(region_inputs(item))}
            importer = self.importer(builder)
            kept = [] if isinstance(item, Region) else [v for v in item.outvars if self.used_later(v)]
            if self.conditions and (isinstance(item, Region) or compat.has_markers(item.effects)):
                self._guarded(builder, importer, item, env, kept)
                return
            _import(importer, item, env)
            for v in kept:
                if isinstance(env.get(v), np.ndarray):
                    self.env[v] = self.segment.keep(env[v], physical_type(v.aval)[1])
                elif isinstance(env.get(v), MemoryArray):
                    self.env[v] = self._deposit(importer, v, env[v])

    def _guarded(self, builder: Builder, importer: Importer, item: Any, env: dict[Any, Any], kept: list[Any]) -> None:
        """An item with effects under a top-level `qd.when`; values that it gives are zero where it did not run."""
        with builder.block() as then:
            _import(importer, item, env)
            results = [self._deposit(importer, v, env[v]) for v in kept]
        with builder.block() as other:
            for pending in results:
                ref = ref_type(pending.ref)
                zero = literal(0, ref.dtype)
                importer.loop_nest(ref.shape, lambda index, r=pending.ref, z=zero: importer.store(r, z, index))
        builder.emit("if", self.predicate(builder), blocks=(then.close(), other.close()))
        for v, pending in zip(kept, results, strict=True):
            self.env[v] = pending

    def _deposit(self, importer: Importer, var: Any, value: Any) -> Pending:
        """A value of the open serial task, stored where it is made."""
        shape, dtype = physical_type(var.aval)
        pending = self.segment.keep(None, dtype, shape)
        if isinstance(value, np.ndarray):
            for at in np.ndindex(*shape):
                importer.store(pending.ref, only(value[at]), [importer.index(k) for k in at])
        else:
            importer.loop_nest(value.shape, lambda at: importer.store(pending.ref, importer.element(value, at), at))
        return pending

    # ------------------------------------------------------------------ equations
    def pure(self, eqn: Any) -> None:
        """Array code: XLA's, or a serial task's when it is small and needs a value of one."""
        pending = any(not is_literal(v) and isinstance(self.env[v], Pending) for v in eqn.invars)
        if pending and largest_size(eqn) <= SMALL:
            try:
                self.serial(eqn)
            except UnsupportedError:
                pass
            else:
                return
        values = [self.value(v) for v in eqn.invars]
        if self.conditions and has_marker(eqn, "qd_call"):
            outs = self._if_true(lambda: bind_eqn(eqn, values), [v.aval for v in eqn.outvars])
        else:
            outs = bind_eqn(eqn, values)
        for var, out in zip(eqn.outvars, outs, strict=True):
            self.env[var] = Constant(out)

    def _if_true(self, run: Callable[[], list[Any]], avals: Sequence[Any]) -> list[Any]:
        """What `run` gives where the enclosing top-level `qd.when`s hold, else zeros: it may fail where they do not."""
        shapes = [physical_type(a) for a in avals]
        zeros = [logical(jnp.zeros(shape, dtype.numpy), a) for (shape, dtype), a in zip(shapes, avals, strict=True)]
        return jax.lax.cond(self.holds(), run, lambda: zeros)

    def holds(self) -> Any:
        """Whether all enclosing conditions hold, as a JAX value."""
        return functools.reduce(jnp.logical_and, [self.value(v) for v in self.conditions], jnp.bool_(True))

    def jump(self, eqn: Any) -> None:
        """`qd.break_if` or `qd.continue_if` in a `qd.while_` around loops: what follows in the body has no effect."""
        taken = jnp.logical_and(self.holds(), self.value(eqn.invars[0]))
        if eqn.primitive.name == "qd_break":
            self.leaves = taken if self.leaves is None else jnp.logical_or(self.leaves, taken)
        goes_on = compat.new_scalar(bool)
        self.env[goes_on] = Constant(jnp.logical_not(taken))
        self.conditions = (*self.conditions, goes_on)

    def control_flow(self, eqn: Any) -> None:
        """`lax` control flow with buffer operations inside, between loops."""
        if has_marker(eqn, "qd_loop_begin"):
            raise UnsupportedError(
                f"needs qd.range outside of `{eqn.primitive.name}`, got it inside a lax loop or branch between tasks",
                loc=eqn_loc(eqn),
                help="use a Python loop, qd.while_ or qd.when, or put the lax loop around the qd.jit function",
            )
        if has_marker(eqn, "qd_call"):
            raise UnsupportedError(
                f"needs arrays in `{eqn.primitive.name}` when it calls a qd.jit function, got a buffer that it reads",
                loc=eqn_loc(eqn),
                help="read it in front of the lax loop or branch: `v = x[...]`",
            )
        self.serial(eqn)

    def alloc(self, eqn: Any) -> None:
        """A new buffer."""
        fill = None
        if eqn.invars:
            fill = self.value(eqn.invars[0])
        self.env[eqn.outvars[0]] = self._new_state(eqn.outvars[0].aval, fill=fill)

    def buffer(self, eqn: Any) -> None:
        """A buffer with the content of an array, or a cell between loops."""
        aval = eqn.outvars[0].aval
        value = jnp.asarray(self.value(eqn.invars[0]), aval.dtype)
        state = self._new_state(aval, value=physical(value))
        if not is_literal(eqn.invars[0]) and eqn.invars[0] in self.hints:
            state.hint = re.sub(r"\W+", "_", self.hints[eqn.invars[0]]).strip("_") or state.hint
        self.env[eqn.outvars[0]] = state

    def _new_state(self, aval: Any, value: Any = None, fill: Any = None) -> BufferState:
        """The state of a new buffer; complex numbers are kept as pairs on a trailing axis."""
        shape, dtype = physical_type(aval, self.current)
        if fill is not None and shape != tuple(aval.shape):
            value, fill = physical(jnp.full(aval.shape, fill, aval.dtype)), None
        return BufferState(shape, dtype, value, fill)

    def read(self, eqn: Any) -> None:
        """The whole content of a buffer."""
        self.env[eqn.outvars[0]] = Constant(logical(self.content(self._state(eqn)), eqn.outvars[0].aval))

    def assign(self, eqn: Any) -> None:
        """A new content for a whole buffer."""
        self._replace(self._state(eqn), physical(self.value(eqn.invars[1])))

    def _replace(self, state: BufferState, value: Any) -> None:
        """A whole new content, where the enclosing top-level `qd.when`s hold."""
        for atom in self.conditions:
            value = jnp.where(self.value(atom), value, self.content(state))
        if state in self.segment.refs:
            self.flush()
        state.value = value

    def access(self, eqn: Any) -> None:
        """A load, store, accumulation or atomic between loops."""
        large = [v for v in (*eqn.invars[1:], *eqn.outvars) if np.prod(v.aval.shape) > SMALL]
        if large:
            self._large_access(eqn)
        else:
            self.serial(eqn)

    def _large_access(self, eqn: Any) -> None:
        """A row or slice too large for registers: XLA's own indexing."""
        state, name = self._state(eqn), eqn.primitive.name
        if name == "qd_atomic":
            most = max(int(np.prod(v.aval.shape)) for v in (*eqn.invars[1:], *eqn.outvars))
            raise UnsupportedError(
                f"needs at most {SMALL} elements in one access between loops, got {most}",
                loc=eqn_loc(eqn),
                help="use a qd.range over the elements",
            )
        first = 2 if name in ("qd_store", "qd_lset", "qd_accum") else 1
        where = safe_indices(self, eqn, state, eqn.invars[first:], loads=first == 1)
        old = logical(self.content(state), eqn.invars[0].aval)
        if first == 1:
            self.env[eqn.outvars[0]] = Constant(old[where])
            return
        op = str(eqn.params.get("op", "set"))
        change = getattr(old.at[where], {"mul": "multiply"}.get(op, op))
        self._replace(state, physical(change(self.value(eqn.invars[1]))))

    def _state(self, eqn: Any) -> BufferState:
        state = self.env[eqn.invars[0]]
        if not isinstance(state, BufferState):
            raise TraceValueError("needs a buffer made by this function", loc=eqn_loc(eqn))
        return state


_RULES: dict[str, Callable[[Stager, Any], None]] = {
    "qd_alloc": Stager.alloc,
    "qd_buffer": Stager.buffer,
    "qd_local": Stager.buffer,
    "qd_read": Stager.read,
    "qd_assign": Stager.assign,
    "qd_break": Stager.jump,
    "qd_continue": Stager.jump,
    **dict.fromkeys(("qd_load", "qd_store", "qd_accum", "qd_atomic", "qd_lget", "qd_lset"), Stager.access),
}


def _has_user_check(task: Task) -> bool:
    # one in a head is about the launch alone
    return any(e.primitive.name == "check" for e in walk_eqns(task.body))


def _rank0(atom: Atom) -> np.ndarray:
    out = np.empty((), object)
    out[()] = atom
    return out


def _import(importer: Importer, item: Any, env: dict[Any, Any]) -> None:
    if isinstance(item, Region):
        importer.region(alone(item), env)
    else:
        importer.eqn(item, env)
