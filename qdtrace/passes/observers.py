"""Observers of a pipeline: each is called with the name of each stage and the program after it.

An observer with `on_decision` also gets each `Decision` of task fusion, one with `on_memory` the text of each memory
analysis, and one with `finish` is called after the last stage. Nothing else in the passes prints
or writes files.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import field, fields, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from qdtrace.config import dump_directory
from qdtrace.frozen import mutable
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import VerifyError, verify_program
from qdtrace.passes.fusion_decisions import format_decision
from qdtrace.passes.report import report_page
from qdtrace.passes.stage_record import Recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from qdtrace.config import Options
    from qdtrace.ir.program import Program
    from qdtrace.passes.base import Pass
    from qdtrace.passes.fusion_decisions import Decision

    Observer = Callable[[str, Program], None]


def teller(observers: Iterable[Observer], name: str) -> Callable[..., None] | None:
    """Returns a function that calls the method of that name of all observers that have it, or None if none has."""
    ears = [getattr(o, name) for o in observers if hasattr(o, name)]
    if not ears:
        return None

    def tell(*what: object) -> None:
        for ear in ears:
            ear(*what)

    return tell


def listening(passes: Iterable[Pass], observers: Sequence[Observer]) -> tuple[Pass, ...]:
    """Returns the passes, where those that make decisions report them to the observers with `on_decision`."""
    tell = teller(observers, "on_decision")

    def told(one: Any) -> Any:
        return replace(one, on_decision=tell) if any(f.name == "on_decision" for f in fields(one)) else one

    return tuple(passes if tell is None else map(told, passes))


def finish(observers: Iterable[Observer]) -> None:
    """Calls `finish` of the observers that have it, after the last stage."""
    if (tell := teller(observers, "finish")) is not None:
        tell()


class Verifier:
    """Checks the program after each stage. Raises VerifyError, which names the stage."""

    def __call__(self, stage: str, program: Program) -> None:
        """Checks the program."""
        try:
            verify_program(program)
        except VerifyError as e:
            raise VerifyError(e.rule, loc=e.loc, notes=(*e.notes, f"after pass `{stage}`"), help=e.help) from None


class Printer:
    """Prints the program after each stage to stderr."""

    def __call__(self, stage: str, program: Program) -> None:
        """Prints the program."""
        print(f"# {program.name} after {stage}", print_program(program), sep="\n", file=sys.stderr)


class DecisionPrinter:
    """Prints each decision of task fusion to stderr."""

    def __call__(self, stage: str, program: Program) -> None:
        """Prints nothing: it only listens."""

    def on_decision(self, decision: Decision) -> None:
        """Prints the decision."""
        print(format_decision(decision), file=sys.stderr)


def write_page(path: Path, title: str, records: Sequence[Recorder]) -> None:
    """Writes a report as a page of HTML."""
    path.write_text(report_page(title, records), encoding="utf-8")


_sequence = count()


class Dumper(Recorder):
    """Writes the program after each stage to `<directory>/<number>_<program>/<number>_<stage>.qd`.

    At the end it writes what each stage changed as `report.html` beside them.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self._run = next(_sequence)

    def __call__(self, stage: str, program: Program) -> None:
        """Writes the program."""
        number = len(self.stages)
        super().__call__(stage, program)
        (self._folder() / f"{number:03}_{stage}.qd").write_text(print_program(program), encoding="utf-8")

    def finish(self) -> None:
        """Writes the report."""
        write_page(self._folder() / "report.html", self.stages[0][1].name, [self])

    def _folder(self) -> Path:
        return _folder(self.directory, self._run, self.stages[0][1].name)


class MemoryDumper:
    """Writes each memory analysis to `<directory>/<number>_<program>/memory_<number>.txt`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._run = next(_sequence)
        self._count = count(1)

    def __call__(self, stage: str, program: Program) -> None:
        """Writes nothing: it only listens."""

    def on_memory(self, program: Program, text: str) -> None:
        """Writes the analysis."""
        folder = _folder(self.directory, self._run, program.name)
        (folder / f"memory_{next(self._count)}.txt").write_text(text, encoding="utf-8")


def _folder(directory: Path, run: int, name: str) -> Path:
    """Returns the folder of one program, which is made if it is missing."""
    clean = re.sub(r"[^\w.-]", "_", name)
    folder = directory / f"{run:03}_{clean}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@mutable
class Timer:
    """Observer that measures the seconds of each stage, in order: `timer.seconds["simplify"]`."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])
    _last: float = field(default_factory=time.perf_counter)

    def __call__(self, stage: str, program: Program) -> None:
        """Adds the time since the last call."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def observers_for(options: Options) -> tuple[Observer, ...]:
    """Returns the observers that the options ask for."""
    found: list[Observer] = []
    if options.verify:
        found.append(Verifier())
    if options.print_ir:
        found.append(Printer())
    if options.fuse_tasks_diag:
        found.append(DecisionPrinter())
    if options.dump_ir or options.dump_simplify:
        found.append(Dumper(dump_directory(options)))
    if options.dump_cfg:
        found.append(MemoryDumper(dump_directory(options)))
    return tuple(found)
