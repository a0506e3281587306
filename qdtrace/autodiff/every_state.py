"""Storage of a loop with a known most number of iterations: every state is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.builder import scalar_var
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.autodiff.loops import Advance, Atoms, Step
    from qdtrace.autodiff.slots import Slots
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom


class EveryState:
    """One slot for each iteration."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots

    def initial(self) -> Atoms:
        """Nothing."""
        return []

    def keep(self, builder: Builder, t: Atom, own: Sequence[Atom], state: Sequence[Atom]) -> Atoms:
        """Keeps the state."""
        self.slots.save(builder, t, state)
        return []

    def backward(
        self, builder: Builder, trips: Atom, own: Sequence[Atom], given: Sequence[Atom], step: Step, advance: Advance
    ) -> Atoms:
        """From the last iteration to the first."""
        t = scalar_var(DType.i32, "t")
        adjoints = [scalar_var(a.dtype, "bar") for a in given]
        last, one = builder("sub", trips, literal(1, DType.i32)), literal(-1, DType.i32)
        with builder.block((t, *adjoints)) as body:
            state = self.slots.load(builder, t)
            self.slots.restore(builder, t)
            results = step(t, state, adjoints)
            block = body.close(results)
        return list(builder.emit("for", last, one, one, *given, blocks=(block,)))
