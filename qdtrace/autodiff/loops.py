"""The reverse of a loop: a sweep that keeps states, then its iterations from the last to the first.

A state is what an iteration starts from: the carried values, and private arrays that the loop both reads and changes.
The backward walk of an iteration runs it once more from its state, so nothing inside has to be kept, and a loop inside
keeps its states only while its iteration is walked back: the need is the sum of trip counts, not the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from qdtrace.autodiff.slots import copy_array
from qdtrace.autodiff.trip_counts import Counter
from qdtrace.autodiff.volatile import loaded_in, written_in
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.carries import carried_params, control_of, initials_of
from qdtrace.ir.program import Block, Literal, Var, is_local, literal, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.walk import bound_in_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.autodiff.adjoints import Adjoints, Backward
    from qdtrace.autodiff.sweep import Env, Sweep
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Eqn

    Atoms = list[Atom]
    Step = Callable[[Atom, Sequence[Atom], Sequence[Atom]], Atoms]
    """Walks back through iteration `t` from its state: (t, state, adjoints) to adjoints."""
    Advance = Callable[[Atom, Sequence[Atom]], Atoms]
    """Runs iteration `t` once more: (t, state) to the next state."""


class Storage(Protocol):
    """A policy: which states of a loop are kept, and how those in between are had again."""

    def keep(self, builder: Builder, t: Atom, state: Sequence[Atom]) -> None:
        """Keeps the state before iteration `t`, or not."""
        ...

    def backward(
        self, builder: Builder, iterations: Iterations, given: Sequence[Atom], step: Step, advance: Advance
    ) -> Atoms:
        """Walks back through all iterations."""
        ...


@dataclass(frozen=True)
class Iterations:
    """The iterations that lanes walk back through together: as many as the lane with the most has."""

    builder: Builder
    most: Atom
    own: Atom | None
    """How many this lane has; None where that is a constant."""

    def only_own(self, t: Atom, emit: Callable[[], Atoms], otherwise: Sequence[Atom]) -> Atoms:
        """What `emit` gives, in lanes that have an iteration `t`."""
        if self.own is None:
            return emit()
        with self.builder.block() as then:
            first = then.close(emit())
        with self.builder.block() as other:
            second = other.close(otherwise)
        return [*self.builder.emit("if", self.builder("lt", t, self.own), blocks=(first, second))]


class Loops:
    """Loops of one task."""

    def __init__(
        self, sweep: Sweep, backward: Backward, storage: Callable[[Eqn, Sequence[DType], Sequence[Var]], Storage]
    ) -> None:
        """`storage` makes the policy of a loop, from the dtypes and private arrays of its state."""
        self.sweep = sweep
        self.builder = sweep.builder
        self.walker = backward
        self._make = storage
        self._storage: dict[Eqn, Storage] = {}
        self._snapshots: dict[Eqn, list[tuple[Var, Var]]] = {}
        sweep.loop = self.keep_states
        backward.loop = self.walk_back

    # Before: the sweep.

    def keep_states(self, eqn: Eqn, env: Env, live: bool) -> None:
        """Emits the loop with its states kept, and leaves the number of iterations in `env`."""
        sweep, builder = self.sweep, self.builder
        self._snapshot(eqn, env)
        keys, more = sweep.carried(eqn, env)
        body = eqn.blocks[-1]
        index, params = _index(eqn)
        if eqn not in self._storage:
            kept = [p.dtype for p in params if p not in _counters(eqn)] + [a.dtype for a in more]
            arrays = [env[a] for a in self._changed(eqn)]
            self._storage[eqn] = self._make(eqn, kept, arrays)  # type: ignore[arg-type]
        storage = self._storage[eqn]
        counter = Counter(builder, eqn)
        first = [*sweep.atoms(env, initials_of(eqn)), *more, literal(0, DType.i32)]
        invars = [*sweep.atoms(env, control_of(eqn)), *first]
        blocks: list[Block] = []
        for block in eqn.blocks:
            *new, t = [scalar_var(a.dtype) for a in first]
            values: Env = {**env, **dict(zip((*carried_params(eqn, block), *keys), new, strict=True))}
            head: list[Var] = []
            if index is not None:
                head = [scalar_var(index.dtype, index.hint)]
                values[index] = head[0]
            with builder.block((*head, *new, t)) as opened:
                if block is body:
                    storage.keep(builder, t, self._state(eqn, values, keys))
                sweep.plain(block.eqns, values, live)
                results = sweep.atoms(values, block.results)
                if block is body:
                    results = [*results, *(values[k] for k in keys), counter.next(t)]
                blocks.append(opened.close(results))
        *outs, count = builder.emit(eqn.primitive, *invars, blocks=blocks, **eqn.params)
        env.update(zip((*eqn.outvars, *keys), outs, strict=True))
        env[eqn, "trips"] = counter.trips(count)

    def _state(self, eqn: Eqn, values: Env, keys: Sequence[Any]) -> Atoms:
        """The carried values that are kept: not those that only count."""
        return [values[p] for p in carried_params(eqn, eqn.blocks[-1]) if p not in _counters(eqn)] + [
            values[k] for k in keys
        ]

    def _changed(self, eqn: Eqn) -> list[Var]:
        """Private arrays from outside that the loop reads and changes."""
        written, inside = written_in(eqn.blocks), _made_in(eqn)
        return [r for r in loaded_in(eqn.blocks) if is_local(r) and r in written and r not in inside]

    def _snapshot(self, eqn: Eqn, env: Env) -> None:
        """Copies private arrays that the loop only reads and that change before the walk comes back to it."""
        accesses, written, inside = self.sweep.accesses, written_in(eqn.blocks), _made_in(eqn)
        last = accesses.number[eqn]
        changed = [
            r
            for r in loaded_in(eqn.blocks)
            if is_local(r) and r not in written and r not in inside and accesses.last_store.get(r, 0) > last
        ]
        if eqn not in self._snapshots:
            self._snapshots[eqn] = [(r, self.sweep.private(r.dtype, ref_type(r).shape, "snapshot")) for r in changed]
        for ref, copy in self._snapshots[eqn]:
            copy_array(self.builder, env[ref], copy)  # type: ignore[arg-type]

    # After: the walk back.

    def walk_back(self, eqn: Eqn, env: Env, adjoints: Adjoints) -> None:
        """Emits the iterations from the last to the first."""
        sweep, walker, builder = self.sweep, self.walker, self.builder
        body = eqn.blocks[-1]
        index, params = _index(eqn)
        active = [k for k, p in enumerate(params) if p in walker.active or eqn.outvars[k] in adjoints]
        outer = walker.outer([body])
        given = [adjoints.take(eqn.outvars[k]) for k in active] + [adjoints.get_or_zero(v) for v in outer]
        for ref, copy in self._snapshots[eqn]:
            copy_array(builder, copy, env[ref])  # type: ignore[arg-type]
        keys, _ = sweep.carried(eqn, env)

        initial = sweep.atoms(env, initials_of(eqn))
        counters = _counters(eqn)
        carried = [p for p in params if p not in counters]

        def values_of(t: Atom, state: Sequence[Atom]) -> Env:
            values: Env = {**env, **dict(zip((*carried, *keys), state, strict=True))}
            progress = [(p, a, counters[p]) for p, a in zip(params, initial, strict=True) if p in counters]
            if index is not None:
                start, _, by = sweep.atoms(env, eqn.invars[:3])
                progress.append((index, start, by))
            for var, start, by in progress:
                values[var] = builder("add", start, builder("mul", builder.convert(t, var.dtype), by))
            return values

        def step(t: Atom, state: Sequence[Atom], adjoint: Sequence[Atom]) -> Atoms:
            values = values_of(t, state)
            sweep.recorded(body.eqns, values, live=False)
            pairs = [(params[k], body.results[k]) for k in active]
            return walker.through_body(body, pairs, outer, values, adjoint)

        def advance(t: Atom, state: Sequence[Atom]) -> Atoms:
            values = values_of(t, state)
            sweep.plain(body.eqns, values, live=False)
            after = {p: sweep.atom(values, a) for p, a in zip(params, body.results, strict=True)}
            return self._state(eqn, {**values, **after}, keys)

        trips = env[eqn, "trips"]
        is_known = isinstance(trips, Literal)
        iterations = Iterations(builder, trips if is_known else builder("lane_max", trips), None if is_known else trips)
        found = self._storage[eqn].backward(builder, iterations, given, step, advance)
        adjoints.update(zip(outer, found[len(active) :], strict=True))
        for k, adjoint in zip(active, found, strict=False):
            walker.add(adjoints, initials_of(eqn)[k], adjoint)


def _counters(eqn: Eqn) -> dict[Var, Atom]:
    """Carried integers that grow by a constant, and the constant: the number of an iteration says what they are."""
    body = eqn.blocks[-1]
    made = {e.outvar: e.invars for e in body.eqns if e.primitive.name == "add"}
    found: dict[Var, Atom] = {}
    for param, result in zip(carried_params(eqn, body), body.results, strict=True):
        if param.dtype in (DType.i32, DType.i64) and result in made:
            by = [a for a in made[result] if a is not param]
            if len(by) == 1 and isinstance(by[0], Literal):
                found[param] = by[0]
    return found


def _index(eqn: Eqn) -> tuple[Var | None, tuple[Var, ...]]:
    """The index of a loop, and its carried parameters in the body."""
    params = eqn.blocks[-1].params
    return (params[0], params[1:]) if eqn.primitive.name == "for" else (None, params)


def _made_in(eqn: Eqn) -> set[Any]:
    return {v for b in eqn.blocks for v in bound_in_block(b)}
