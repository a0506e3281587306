"""What may watch a pipeline: called with the name of each stage and the program after it.

Nothing else in the passes prints or writes files.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from qdtrace.config import dump_directory
from qdtrace.ir.printer import print_program
from qdtrace.ir.verify import VerifyError, verify_program

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from qdtrace.config import Options
    from qdtrace.ir.program import Program

    Observer = Callable[[str, Program], None]


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


_sequence = count()


class Dumper:
    """Writes the program after each stage to `<directory>/<number>_<program>/<number>_<stage>.qd`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stages = count()
        self._run = next(_sequence)

    def __call__(self, stage: str, program: Program) -> None:
        """Writes the program."""
        folder = self.directory / f"{self._run:03}_{program.name}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{next(self._stages):02}_{stage}.qd").write_text(print_program(program))


@dataclass
class Timer:
    """Seconds each stage took, in order: `timer.seconds["simplify"]`."""

    seconds: dict[str, float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def __call__(self, stage: str, program: Program) -> None:
        """Adds the time since the last call."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def observers_for(options: Options) -> tuple[Observer, ...]:
    """What the options ask for."""
    found: list[Observer] = []
    if options.verify:
        found.append(Verifier())
    if options.print_ir:
        found.append(Printer())
    if options.dump_ir or options.dump_simplify:
        found.append(Dumper(dump_directory(options)))
    return tuple(found)
