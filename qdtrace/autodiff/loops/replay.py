"""Replay of a loop's iterations in the walk back: each runs once more from a kept state, then is walked back through.

A *segment* is a fixed number of iterations treated as one. All of them run again first, as straight-line code, then all
are walked back through: their values stay in registers, and no code in between tests whether an iteration exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from qdtrace.autodiff.loops.trip_counts import NUMBER
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params
from qdtrace.ir.program import Literal, Var, is_local, literal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.adjoints import Backward
    from qdtrace.autodiff.loops.iterations import Iterations
    from qdtrace.autodiff.loops.loop_state import LoopState
    from qdtrace.autodiff.sweep import Env, Sweep
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom

    Atoms = list[Atom]


def scaled(builder: Builder, number: Atom, factor: int, more: int = 0) -> Atom:
    """Returns `number * factor + more` for integers, without emitting operations that change nothing."""
    if isinstance(number, Literal):
        return literal(int(number.value) * factor + more, number.dtype)
    if factor != 1:
        number = builder("mul", number, literal(factor, number.dtype))
    return builder("add", number, literal(more, number.dtype)) if more else number


def divided(builder: Builder, number: Atom, factor: int) -> tuple[Atom, Atom]:
    """Returns quotient and remainder of a number that is not negative. Unless it is constant, `factor` must be a power
    of two."""
    if isinstance(number, Literal):
        quotient, rest = divmod(int(number.value), factor)
        return literal(quotient, number.dtype), literal(rest, number.dtype)
    assert factor & (factor - 1) == 0
    shift, mask = literal(factor.bit_length() - 1, number.dtype), literal(factor - 1, number.dtype)
    return builder("shift_right_logical", number, shift), builder("and", number, mask)


def private_memory(values: Env) -> Env:
    """Returns the private memory that an iteration made. The next one may reuse it: the walk back reads none of it."""
    return {v: a for v, a in values.items() if isinstance(v, Var) and is_local(v)}


@frozen
class Replay:
    """The iterations of one loop. A state is the list of kept carried values, then the values of `keys`."""

    sweep: Sweep
    walker: Backward
    state: LoopState
    env: Env
    keys: Sequence[Any]
    active: Sequence[int]
    """Numbers of the carried values that have adjoints."""
    outer: Sequence[Var]
    """Scalars from outside of the loop that have adjoints."""
    live: bool
    """True if the iterations run for the first time, so that their checks are still to be made."""
    steps: int = 1
    """Iterations of a segment."""
    first: Atom | None = None
    """Iteration that segment 0 begins with; None for iteration 0."""

    def back(self, n: Atom, kept: Sequence[Atom], adjoint: Sequence[Atom]) -> Atoms:
        """Walks back through segment `n` from its state `kept`.

        `adjoint` and the result are adjoints of carried values, then of scalars from outside.
        """
        body = self.state.eqn.blocks[-1]
        params = carried_params(self.state.eqn, body)
        runs: list[Env] = []
        memory: Env = {}
        for k in range(self.steps):
            values = self._values(n, k, kept, memory)
            self.sweep.recorded(body.eqns, values, self.live)
            memory = private_memory(values)
            kept = self._after(values)
            runs.append(values)
        pairs = [(params[k], body.results[k]) for k in self.active]
        found = list(adjoint)
        for values in reversed(runs):
            found = self.walker.through_body(body, pairs, self.outer, values, found)
        return found

    def advance(self, n: Atom, kept: Sequence[Atom]) -> Atoms:
        """Runs segment `n` once more from its state; returns the state after it."""
        memory: Env = {}
        for k in range(self.steps):
            values = self._values(n, k, kept, memory)
            self.sweep.plain(self.state.eqn.blocks[-1].eqns, values, live=False)
            memory = private_memory(values)
            kept = self._after(values)
        return list(kept)

    @property
    def undoes(self) -> bool:
        """Returns whether stores of the iterations are undone before they run again."""
        return self.sweep.log.undoes(self.state.eqn)

    def undo(self, n: Atom) -> Atoms:
        """Undoes the stores of segment `n` to arrays that have a log; returns no values."""
        loop, log = self.state.eqn, self.sweep.log
        if self.undoes:
            for k in reversed(range(self.steps)):
                values = {**self.env, (loop, NUMBER): self._number(n, k)}
                if self.state.index is not None:
                    operands = self.sweep.atoms(self.env, loop.invars)
                    values[self.state.index] = self.state.index_at(self.sweep.builder, values[loop, NUMBER], operands)
                log.undo(self.sweep, loop.blocks[-1].eqns, values, log.covered[loop])
        return []

    def _number(self, n: Atom, k: int) -> Atom:
        """Returns the number of iteration `k` of segment `n`."""
        t = scaled(self.sweep.builder, n, self.steps, k)
        return t if self.first is None else self.sweep.builder("add", self.first, t)

    def _values(self, n: Atom, k: int, kept: Sequence[Atom], memory: Env) -> Env:
        """Returns the values that iteration `k` of segment `n` begins with."""
        builder, t = self.sweep.builder, self._number(n, k)
        names = (*self.state.kept, *self.keys)
        counted = self.state.counted(builder, t, self.sweep.atoms(self.env, self.state.eqn.invars))
        number = {(self.state.eqn, NUMBER): t}
        return {**self.env, **memory, **number, **dict(zip(names, kept, strict=True)), **counted}

    def _after(self, values: Env) -> Atoms:
        """Returns the state after an iteration that ended with these values."""
        body = self.state.eqn.blocks[-1]
        params = carried_params(self.state.eqn, body)
        results = dict(zip(params, self.sweep.atoms(values, body.results), strict=True))
        self.sweep.pass_test(self.state.eqn, values, self.keys)
        return [*(results[p] for p in self.state.kept), *(values[k] for k in self.keys)]


class Storage(Protocol):
    """Storage of a loop's states: it chooses which are kept, and recomputes those in between."""

    def keep(self, builder: Builder, t: Atom, state: Sequence[Atom]) -> None:
        """Saves the state before iteration `t`, if the storage keeps that one."""
        ...

    def backward(self, builder: Builder, iterations: Iterations, given: Sequence[Atom], replay: Replay) -> Atoms:
        """Walks back through all iterations; returns the adjoints of carried values and of scalars from outside."""
        ...
