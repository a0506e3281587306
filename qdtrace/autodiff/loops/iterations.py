"""The iterations that lanes with different trip counts walk back through together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.ir.program import Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom

    Atoms = list[Atom]


@frozen
class Iterations:
    """The iterations that lanes walk back through together: as many as the lane with the most has."""

    builder: Builder
    most: Atom
    own: Atom | None = None
    """Trip count of this lane; None if it is `most`."""

    @staticmethod
    def together(builder: Builder, own: Atom) -> Iterations:
        """Returns the iterations of lanes whose trip counts are `own`."""
        if isinstance(own, Literal):
            return Iterations(builder, own)
        return Iterations(builder, builder("lane_max", own), own)

    def only_own(self, t: Atom, emit: Callable[[], Atoms], otherwise: Sequence[Atom]) -> Atoms:
        """Emits code for the lanes that have an iteration `t`; returns its values, and `otherwise` in other lanes."""
        if self.own is None:
            return emit()
        with self.builder.block() as then:
            first = then.close(emit())
        with self.builder.block() as other:
            second = other.close(otherwise)
        return [*self.builder.emit("if", self.builder("lt", t, self.own), blocks=(first, second))]
