"""The reverse of a loop: a sweep that keeps states, then its iterations from the last to the first.

The backward walk of an iteration runs it once more from its state, so nothing inside has to be kept. An inner loop
keeps its states only while its iteration is walked back, so memory grows with the sum of trip counts, not the product.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.autodiff.loops.iterations import Iterations
from qdtrace.autodiff.loops.loop_state import loop_state, unneeded
from qdtrace.autodiff.loops.passed import Passed
from qdtrace.autodiff.loops.replay import Replay
from qdtrace.autodiff.loops.segments import Segments, sweep_hints
from qdtrace.autodiff.loops.slots import copy_array
from qdtrace.autodiff.loops.trip_counts import NUMBER, Counter, constant_trips
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.carries import carried_params
from qdtrace.ir.program import literal, ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.analysis.index.most_trips import MostTrips
    from qdtrace.autodiff.adjoints import Adjoints, Backward
    from qdtrace.autodiff.loops.loop_state import LoopState
    from qdtrace.autodiff.loops.needed import Needed
    from qdtrace.autodiff.loops.replay import Storage
    from qdtrace.autodiff.sweep import Env, Sweep
    from qdtrace.ir.program import Block, Eqn, Var


class Loops:
    """Emits the sweep and the walk back of the loops of one task."""

    def __init__(
        self,
        sweep: Sweep,
        backward: Backward,
        needed: Needed,
        storage: Callable[[Eqn, Sequence[DType], Sequence[Var]], Storage | Segments],
        most_trips: MostTrips,
    ) -> None:
        """`storage` makes the storage of a loop from the dtypes and private arrays of its state."""
        self.sweep = sweep
        self.builder = sweep.builder
        self.walker = backward
        self._needed = needed
        self._make = storage
        self._most = most_trips
        self._kinds: dict[Eqn, LoopState] = {}
        self._storage: dict[Eqn, Storage | Segments] = {}
        self._snapshots: dict[Eqn, list[tuple[Var, Var]]] = {}
        self._passed = Passed(needed.task, backward.active, sweep.tape)
        self._checked_later: set[Eqn] = set()
        """Loops that the sweep left out, so that their checks are still to be made."""
        sweep.loop = self.keep_states
        backward.loop = self.walk_back

    def _state(self, eqn: Eqn) -> LoopState:
        if eqn not in self._kinds:
            self._kinds[eqn] = loop_state(eqn, self._needed, self.sweep.accesses.not_restored(eqn))
        return self._kinds[eqn]

    # Before: the sweep.

    def keep_states(self, eqn: Eqn, env: Env, live: bool) -> None:
        """Emits the loop with code that keeps its states, and puts its trip count into `env`."""
        if eqn in self._passed:
            self.sweep.plain([eqn], env, live)
            return
        sweep, builder, state = self.sweep, self.builder, self._state(eqn)
        self._snapshot(eqn, env)
        keys, more = sweep.carried(eqn, env)
        if eqn not in self._storage:
            dtypes = [p.dtype for p in state.kept] + [a.dtype for a in more]
            self._storage[eqn] = self._make(eqn, dtypes, [env[a] for a in state.arrays])  # type: ignore[misc]
        counter = Counter(builder, eqn, self._most.of(eqn))
        trips = counter.before(sweep.atoms(env, eqn.control))
        if trips is not None:
            env[eqn, "trips"] = trips
            if not keys and state.is_walked_only:
                env.update((v, unneeded(v)) for v in eqn.outvars)
                if live:
                    self._checked_later.add(eqn)
                return
        sweep.log.filling = eqn
        storage, body = self._storage[eqn], eqn.blocks[-1]
        if isinstance(storage, Segments) and storage.is_counted:
            assert trips is not None
            found = storage.sweep(sweep, state, env, live, trips, dict(zip(keys, more, strict=True)))
            env.update(zip((*eqn.outvars, *keys), found, strict=True))
            sweep.log.filling = None
            return
        first = [*sweep.atoms(env, eqn.initials), *more, literal(0, DType.i32)]
        invars = [*sweep.atoms(env, eqn.control), *first]
        blocks: list[Block] = []
        for block in eqn.blocks:
            *new, t = [scalar_var(a.dtype) for a in first]
            values: Env = {**env, **dict(zip((*carried_params(eqn, block), *keys), new, strict=True))}
            head: list[Var] = []
            if state.index is not None:
                head = [scalar_var(state.index.dtype, state.index.hint)]
                values[state.index] = head[0]
            with builder.block((*head, *new, t)) as opened:
                if block is body:
                    values[eqn, NUMBER] = t
                    sweep.pass_test(eqn, values, keys)
                    storage.keep(builder, t, [values[k] for k in (*state.kept, *keys)])
                sweep.plain(block.eqns, values, live)
                results = sweep.atoms(values, block.results)
                if block is body:
                    results = [*results, *(values[k] for k in keys), counter.next(t)]
                blocks.append(opened.close(results))
        sweep.log.filling = None
        *outs, count = builder.emit(eqn.primitive, *invars, blocks=blocks, **{**sweep_hints(trips), **eqn.params})
        env.update(zip((*eqn.outvars, *keys), outs, strict=True))
        sweep.pass_test(eqn, env, keys)
        if trips is None:
            env[eqn, "trips"] = counter.after(count)

    def _snapshot(self, eqn: Eqn, env: Env) -> None:
        """Copies private arrays that the loop only reads and that change before the walk back reaches it."""
        accesses, last = self.sweep.accesses, self.sweep.accesses.number[eqn]
        if eqn not in self._snapshots:
            changed = [r for r in self._state(eqn).only_read if accesses.last_store.get(r, 0) > last]
            self._snapshots[eqn] = [(r, self.sweep.private(r.dtype, ref_type(r).shape, "snapshot")) for r in changed]
        for ref, copy in self._snapshots[eqn]:
            copy_array(self.builder, env[ref], copy)  # type: ignore[arg-type]

    # After: the walk back.

    def walk_back(self, eqn: Eqn, env: Env, adjoints: Adjoints) -> None:
        """Emits the walk back through the iterations, from the last to the first."""
        if eqn in self._passed:
            return
        sweep, walker, builder, state = self.sweep, self.walker, self.builder, self._state(eqn)
        body = eqn.blocks[-1]
        params = carried_params(eqn, body)
        active = [k for k, p in enumerate(params) if p in walker.active or eqn.outvars[k] in adjoints]
        outer = walker.outer([body])
        given = [adjoints.take(eqn.outvars[k]) for k in active] + [adjoints.get_or_zero(v) for v in outer]
        for ref, copy in self._snapshots[eqn]:
            copy_array(builder, copy, env[ref])  # type: ignore[arg-type]
        keys, _ = sweep.carried(eqn, env)

        replay = Replay(sweep, walker, state, env, keys, active, outer, live=eqn in self._checked_later)
        trips = env[eqn, "trips"]
        storage = self._storage[eqn]
        if isinstance(storage, Segments):
            exact = constant_trips(eqn)  # a constant that left a branch as its result is a variable in `env`
            trips = trips if exact is None else literal(exact, DType.i32)
            found = storage.backward(builder, trips, given, replay)
        elif state.is_kept or replay.undoes:
            found = storage.backward(builder, Iterations.together(builder, trips), given, replay)
        else:
            found = storage.backward(builder, Iterations(builder, trips), given, replay)
        adjoints.update(zip(outer, found[len(active) :], strict=True))
        for k, adjoint in zip(active, found, strict=False):
            walker.add(adjoints, eqn.initials[k], adjoint)
