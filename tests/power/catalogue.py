"""Known faults, each as the replacement of one text that puts it back.

They are in `faults/*.toml`, a file an area: under the name of a fault `was` says what was wrong, `path`, `old` and
`new` are the replacement, and `tests` are the files that are expected to find it.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class NoFaultError(Exception):
    """The text that a fault replaces is not in its file exactly once."""


@dataclass(frozen=True)
class Fault:
    """A fault of the package that was mended once."""

    name: str
    was: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]

    def with_it(self, text: str) -> str:
        """Returns the text of its file with the fault. Raises NoFaultError if its place is not found exactly once."""
        if (found := text.count(self.old)) != 1:
            raise NoFaultError(f"{self.name}: {self.path} has its text {found} times, not once:\n{self.old}")
        return text.replace(self.old, self.new)


def all_faults() -> list[Fault]:
    """Returns the faults in the order of their files."""
    files = sorted(Path(__file__).with_name("faults").glob("*.toml"))
    return [
        Fault(name, **{**fields, "tests": tuple(fields["tests"])})
        for file in files
        for name, fields in tomllib.loads(file.read_text()).items()
    ]
