"""What is between a loop of a reverse task and the policy of its states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.autodiff.loops.replay import Replay
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom

    Atoms = list[Atom]


class Storage(Protocol):
    """A policy: which states of a loop are kept, and how those in between are had again."""

    def keep(self, builder: Builder, t: Atom, state: Sequence[Atom]) -> None:
        """Keeps the state before iteration `t`, or not."""
        ...

    def backward(self, builder: Builder, iterations: Iterations, given: Sequence[Atom], replay: Replay) -> Atoms:
        """Walks back through all iterations."""
        ...


@dataclass(frozen=True)
class Iterations:
    """The iterations that lanes walk back through together: as many as the lane with the most has."""

    builder: Builder
    most: Atom
    own: Atom | None = None
    """How many this lane has; None where it is `most`."""

    @staticmethod
    def together(builder: Builder, own: Atom) -> Iterations:
        """The iterations of lanes with so many each."""
        if isinstance(own, Literal):
            return Iterations(builder, own)
        return Iterations(builder, builder("lane_max", own), own)

    def only_own(self, t: Atom, emit: Callable[[], Atoms], otherwise: Sequence[Atom]) -> Atoms:
        """What `emit` gives, in lanes that have an iteration `t`."""
        if self.own is None:
            return emit()
        with self.builder.block() as then:
            first = then.close(emit())
        with self.builder.block() as other:
            second = other.close(otherwise)
        return [*self.builder.emit("if", self.builder("lt", t, self.own), blocks=(first, second))]
