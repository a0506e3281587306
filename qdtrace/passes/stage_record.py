"""The record of one program's way through the pipeline, of which `report` makes a page."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.frozen import mutable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.errors import Loc
    from qdtrace.ir.program import Program
    from qdtrace.passes.fusion_decisions import Decision


@mutable
class Recorder:
    """Observer that keeps the stages and decisions of one program, for a report."""

    stages: list[tuple[str, Program]] = field(default_factory=list["tuple[str, Program]"])
    """Name of each stage and the program after it."""
    decisions: list[Decision] = field(default_factory=list["Decision"])
    launches: Sequence[tuple[str, str]] = ()
    """Name of each final task, and a text that says how it was vectorised."""
    loops: Sequence[tuple[str, Loc | None]] = ()
    """Text that says what reverse mode keeps of each loop and why, and the place of the loop."""
    times: Sequence[tuple[str, ...]] = ()
    """Time, speed and share of a copy's speed of each final task, if it was profiled."""

    def __call__(self, stage: str, program: Program) -> None:
        """Keeps the program."""
        self.stages.append((stage, program))

    def on_decision(self, decision: Decision) -> None:
        """Keeps the decision."""
        self.decisions.append(decision)
