"""Storage that keeps every state, for a loop with a known upper bound of its trip count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import emit_loop
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.loops.iterations import Atoms, Iterations
    from qdtrace.autodiff.loops.replay import Replay
    from qdtrace.autodiff.loops.slots import Slots
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom, Var


class EveryState:
    """Storage with one slot for each iteration."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots

    def keep(self, builder: Builder, t: Atom, state: Sequence[Atom]) -> None:
        """Saves the state before iteration `t` in slot `t`."""
        self.slots.save(builder, t, state)

    def backward(self, builder: Builder, iterations: Iterations, given: Sequence[Atom], replay: Replay) -> Atoms:
        """Walks back from the last iteration to the first, each from its own state."""

        def back(t: Var, adjoints: list[Var]) -> Atoms:
            def iteration() -> Atoms:
                replay.undo(t)
                self.slots.restore(builder, t)
                return replay.back(t, self.slots.load(builder, t), adjoints)

            return iterations.only_own(t, iteration, adjoints)

        last, down = builder("sub", iterations.most, literal(1, DType.i32)), literal(-1, DType.i32)
        return [*emit_loop(builder, (last, down, down), given, back, index="t", carry="bar")]
