"""Storage of a loop in segments: one state is kept for each, and the walk back runs all its iterations again at once.

    for t in 0 : 103                    for b in 0 : 12            # a state is kept at its start
      ...                     becomes     ... 8 times
                                        for j in 0 : 7             # the rest: each state is kept
                                          ...

and the walk back goes through the rest first, then through the segments from the last to the first. No code in a
segment tests whether an iteration exists. Another storage chooses which states of segments are kept.

If the trip count is known only after the loop, the loop runs as it is. At the start of each segment it also keeps the
state in slot 0 of the rest, in case the segment stays partial: the states of the rest are then recomputed from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from qdtrace.autodiff.loops.every_state import EveryState
from qdtrace.autodiff.loops.iterations import Iterations
from qdtrace.autodiff.loops.replay import divided, private_memory, scaled
from qdtrace.autodiff.loops.trip_counts import NUMBER
from qdtrace.ir.builder import emit_loop
from qdtrace.ir.carries import carried_params
from qdtrace.ir.program import Literal, is_local, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from qdtrace.autodiff.loops.iterations import Atoms
    from qdtrace.autodiff.loops.loop_state import LoopState
    from qdtrace.autodiff.loops.replay import Replay, Storage
    from qdtrace.autodiff.loops.slots import Slots
    from qdtrace.autodiff.sweep import Env, Sweep
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Var

FEW = 4
"""Most states whose sweep may be unrolled: more would be values that live until the walk back, and spill. On a CPU 16
steps of a polynomial take 1.8 of the time."""
I32 = DType.i32
ZERO, ONE = literal(0, I32), literal(1, I32)


def sweep_hints(count: Atom | None) -> dict[str, Any]:
    """Returns the parameters of a loop that keeps `count` states; None if their number is not known."""
    return {"unroll": False} if isinstance(count, Literal) and int(count.value) > FEW else {}


class Segments:
    """Storage that divides a loop into segments of `steps` iterations."""

    def __init__(self, storage: Storage, rest: Slots | None, steps: int, *, is_counted: bool) -> None:
        """`storage` keeps states of segments; `rest` has slots for the iterations after them. `is_counted` says whether
        the trip count is known before the loop."""
        self.storage = storage
        self.rest = rest
        self.steps = steps
        self.is_counted = is_counted

    # Before: the sweep.

    def keep(self, builder: Builder, t: Atom, state: Sequence[Atom]) -> None:
        """Keeps the state if iteration `t` begins a segment, in a loop whose iterations run one by one."""
        assert self.rest is not None
        number, within = divided(builder, t, self.steps)
        with builder.block() as then:
            self.rest.save(builder, ZERO, state)
            self.storage.keep(builder, number, state)
        with builder.block() as other:
            pass
        builder.emit("if", builder("eq", within, ZERO), blocks=(then.close(), other.close()))

    def sweep(
        self, sweep: Sweep, state: LoopState, env: Env, live: bool, trips: Atom, more: Mapping[Any, Atom]
    ) -> Sequence[Var]:
        """Emits a `for` of `trips` iterations in segments, with code that keeps its states.

        It also carries the values of `more`. Returns its results, then the final values of `more`.
        """
        builder, loop = sweep.builder, state.eqn
        body, operands = loop.blocks[-1], sweep.atoms(env, loop.invars)
        names = (*carried_params(loop, body), *more)

        memory: Env = {}

        def iteration(t: Atom, carried: Env) -> Env:
            values: Env = {**env, **memory, **carried, (loop, NUMBER): t}
            if state.index is not None:
                values[state.index] = state.index_at(builder, t, operands)
            sweep.plain(body.eqns, values, live)
            memory.update(private_memory(values))
            after = [*sweep.atoms(values, body.results), *(values[k] for k in more)]
            return dict(zip(names, after, strict=True))

        def loop_over(
            count: Atom, first: Atom, steps: int, storage: Storage, carried: Sequence[Atom]
        ) -> Sequence[Var]:
            def segment(n: Var, params: list[Var]) -> list[Atom]:
                values: Env = dict(zip(names, params, strict=True))
                storage.keep(builder, n, [values[k] for k in (*state.kept, *more)])
                for k in range(steps):
                    values = iteration(builder("add", first, scaled(builder, n, steps, k)), values)
                return [values[name] for name in names]

            return emit_loop(builder, (ZERO, count, ONE), carried, segment, **sweep_hints(count))

        segments, rest = self._divided(builder, trips)
        initial = [*sweep.atoms(env, loop.initials), *more.values()]
        outs = loop_over(segments, ZERO, self.steps, self.storage, initial)
        if self.rest is not None:
            behind = scaled(builder, segments, self.steps)
            outs = loop_over(rest, behind, 1, EveryState(self.rest), outs)
        return outs

    def _divided(self, builder: Builder, trips: Atom) -> tuple[Atom, Atom]:
        """Returns the numbers of segments and of the iterations after them. A machine may choose fewer segments if the
        states of all iterations have a place (`at_most`)."""
        segments, rest = divided(builder, trips, self.steps)
        slots = self.rest
        if isinstance(segments, Literal) or slots is None or not self.is_counted or slots.copies:
            return segments, rest
        if not all(map(is_local, slots.values)):
            return segments, rest
        segments = builder("at_most", segments)
        return segments, builder("sub", trips, scaled(builder, segments, self.steps))

    # After: the walk back.

    def backward(self, builder: Builder, trips: Atom, given: Sequence[Atom], replay: Replay) -> Atoms:
        """Walks back through `trips` iterations: first the rest, then the segments."""
        segments, rest = self._divided(builder, trips)
        kept = segments
        if self.rest is not None:
            behind = replace(replay, first=scaled(builder, segments, self.steps))
            left = Iterations.together(builder, rest)
            if not self.is_counted:
                self._run_rest(builder, left, behind)
                kept, _ = divided(builder, builder("add", trips, literal(self.steps - 1, I32)), self.steps)
            given = EveryState(self.rest).backward(builder, left, given, behind)
        together = Iterations.together(builder, kept)
        if kept is not segments:
            # A stack also holds the starts of partial segments, and its strides depend on those too.
            together = Iterations(builder, together.most, segments)
        return self.storage.backward(builder, together, given, replace(replay, steps=self.steps))

    def _run_rest(self, builder: Builder, left: Iterations, replay: Replay) -> None:
        """Runs the iterations after the segments again and keeps their states; the first one's is in slot 0."""
        slots = self.rest
        assert slots is not None

        def begin() -> Atoms:
            slots.restore(builder, ZERO)
            return slots.load(builder, ZERO)

        state = left.only_own(ZERO, begin, [literal(0, v.dtype) for v in slots.values])

        def forward(following: Var, values: list[Var]) -> Atoms:
            def run() -> Atoms:
                new = replay.advance(builder("sub", following, ONE), values)
                slots.save(builder, following, new)
                return new

            return left.only_own(following, run, values)

        emit_loop(builder, (ONE, left.most, ONE), state, forward)
