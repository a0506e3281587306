"""Programs that failed once, kept as text and run for ever.

A file of `corpus/` is a program with comment lines `# inputs: <kind> <seed>`, one for each set of arguments.
`replay()` gives them as cases for `pytest.mark.parametrize`.
"""

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qdtrace.ir.parser import parse_program
from qdtrace.ir.printer import print_program
from qdtrace.ir.program import Program
from tests.differential.inputs import arguments

FOLDER = Path(__file__).parent / "corpus"
_INPUTS = re.compile(r"^# inputs: (\w+) (\d+)$", re.MULTILINE)


class Case(NamedTuple):
    """A program and arguments for it; prints as the text that belongs into the corpus."""

    program: Program
    args: list[np.ndarray]
    kind: str = "plain"
    seed: int = 0

    def __repr__(self) -> str:
        return f"\n# inputs: {self.kind} {self.seed}\n{print_program(self.program)}\n"


def case(program: Program, kind: str, seed: int) -> Case:
    """A case with the arguments of that kind and seed."""
    return Case(program, arguments(program, kind, seed), kind, seed)


def replay(folder: Path = FOLDER) -> list[tuple[str, Case]]:
    """Every case of the corpus with its name."""
    found = []
    for path in sorted(folder.glob("*.qd")):
        text = path.read_text(encoding="utf-8")
        program = parse_program(text, file=path.name)
        inputs = _INPUTS.findall(text)
        if not inputs:
            raise ValueError(f"{path.name} needs a line `# inputs: <kind> <seed>`")
        found += [(f"{path.stem}-{kind}-{seed}", case(program, kind, int(seed))) for kind, seed in inputs]
    return found


def keep(failed: Case, name: str, folder: Path = FOLDER) -> Path:
    """Writes a case into the corpus."""
    path = folder / f"{name}.qd"
    path.write_text(repr(failed).lstrip(), encoding="utf-8")
    return path
