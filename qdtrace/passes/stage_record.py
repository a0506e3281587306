"""The record of one program's way through the pipeline, of which `report` makes a page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.errors import Loc
    from qdtrace.ir.program import Program
    from qdtrace.passes.fusion_decisions import Decision


@dataclass(frozen=True, slots=True)
class StageRecord:
    """The record of one program's way through the pipeline."""

    stages: tuple[tuple[str, Program], ...]
    """Name of each stage and the program after it."""
    decisions: tuple[Decision, ...] = ()
    launches: tuple[tuple[str, str], ...] = ()
    """Name of each final task, and a text that says how it was vectorised."""
    loops: tuple[tuple[str, Loc | None], ...] = ()
    """Text that says what reverse mode keeps of each loop and why, and the place of the loop."""
    times: tuple[tuple[str, ...], ...] = ()
    """Time, speed and share of a copy's speed of each final task, if it was profiled."""
