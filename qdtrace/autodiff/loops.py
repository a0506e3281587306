"""The reverse of a loop: a sweep that keeps states, then its iterations from the last to the first.

A state is what an iteration starts from: the carried values, and private arrays that the loop both reads and changes.
The backward walk of an iteration runs it once more from its state, so nothing inside has to be kept, and a loop inside
keeps its states only while its iteration is walked back: the need is the sum of trip counts, not the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from qdtrace.autodiff.slots import copy_array
from qdtrace.autodiff.trip_counts import exact_trips
from qdtrace.autodiff.volatile import loaded_in, written_in
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.program import Block, Var, is_local, literal, ref_type
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

    def initial(self) -> Atoms:
        """What the sweep carries for the policy, at first."""
        ...

    def keep(self, builder: Builder, t: Atom, own: Sequence[Atom], state: Sequence[Atom]) -> Atoms:
        """Keeps the state before iteration `t`, or not; gives what the sweep carries on."""
        ...

    def backward(
        self, builder: Builder, trips: Atom, own: Sequence[Atom], given: Sequence[Atom], step: Step, advance: Advance
    ) -> Atoms:
        """Walks back through all iterations. `own` is what the sweep carried at the end."""
        ...


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
        state = [p.dtype for p in params] + [a.dtype for a in more]
        if eqn not in self._storage:
            arrays = [env[a] for a in self._changed(eqn)]
            self._storage[eqn] = self._make(eqn, state, arrays)  # type: ignore[arg-type]
        storage = self._storage[eqn]
        own = storage.initial()
        first = [*sweep.atoms(env, eqn.invars[len(eqn.invars) - len(params) :]), *more, literal(0, DType.i32), *own]
        invars = [*sweep.atoms(env, eqn.invars[: len(eqn.invars) - len(params)]), *first]
        blocks: list[Block] = []
        for block in eqn.blocks:
            new = [scalar_var(a.dtype) for a in first]
            values: Env = {**env, **dict(zip((*params_of(eqn, block), *keys), new, strict=False))}
            head: list[Var] = []
            if index is not None:
                head = [scalar_var(index.dtype, index.hint)]
                values[index] = head[0]
            t, old = new[len(state)], new[len(state) + 1 :]
            with builder.block((*head, *new)) as opened:
                following: list[Atom] = []
                if block is body:
                    following = storage.keep(builder, t, old, new[: len(state)])
                sweep.plain(block.eqns, values, live)
                results = sweep.atoms(values, block.results)
                if block is body:
                    count = builder("add", t, literal(1, DType.i32))
                    results = [*results, *(values[k] for k in keys), count, *following]
                blocks.append(opened.close(results))
        outs = builder.emit(eqn.primitive, *invars, blocks=blocks, **eqn.params)
        env.update(zip((*eqn.outvars, *keys), outs, strict=False))
        trips = exact_trips(eqn)
        env[eqn, "trips"] = outs[len(state)] if trips is None else literal(trips, DType.i32)
        for k, out in enumerate(outs[len(state) + 1 :]):
            env[eqn, k] = out

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

        def values_of(t: Atom, state: Sequence[Atom]) -> Env:
            values: Env = {**env, **dict(zip((*params, *keys), state, strict=True))}
            if index is not None:
                start, _, step = sweep.atoms(env, eqn.invars[:3])
                at = builder("mul", builder.convert(t, index.dtype), step)
                values[index] = builder("add", start, at)
            return values

        def step(t: Atom, state: Sequence[Atom], adjoint: Sequence[Atom]) -> Atoms:
            values = values_of(t, state)
            sweep.recorded(body.eqns, values, live=False)
            carried = [(params[k], body.results[k]) for k in active]
            return walker.through_body(body, carried, outer, values, adjoint)

        def advance(t: Atom, state: Sequence[Atom]) -> Atoms:
            values = values_of(t, state)
            sweep.plain(body.eqns, values, live=False)
            return [*sweep.atoms(values, body.results), *(values[k] for k in keys)]

        own: Atoms = []
        while (eqn, len(own)) in env:
            own.append(env[eqn, len(own)])
        found = self._storage[eqn].backward(builder, env[eqn, "trips"], own, given, step, advance)
        adjoints.update(zip(outer, found[len(active) :], strict=True))
        initial = eqn.invars[len(eqn.invars) - len(params) :]
        for k, adjoint in zip(active, found, strict=False):
            walker.add(adjoints, initial[k], adjoint)


def _index(eqn: Eqn) -> tuple[Var | None, tuple[Var, ...]]:
    """The index of a loop, and its carried parameters in the body."""
    params = eqn.blocks[-1].params
    return (params[0], params[1:]) if eqn.primitive.name == "for" else (None, params)


def params_of(eqn: Eqn, block: Block) -> tuple[Var, ...]:
    """Carried parameters of a block of a loop."""
    return block.params[1:] if eqn.primitive.name == "for" else block.params


def _made_in(eqn: Eqn) -> set[Any]:
    return {v for b in eqn.blocks for v in bound_in_block(b)}
