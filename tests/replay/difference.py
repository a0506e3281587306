"""What differs between the texts of two trees."""

import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.replay import store


@dataclass(frozen=True)
class Difference:
    """A text that is not the same in both trees; one that a tree does not have is None."""

    program: str
    text: str
    """Its name: the machine or processor, and the stage or language."""
    before: str | None
    after: str | None

    def lines(self, before: str, after: str) -> list[str]:
        """A unified diff headed with program and text; `before` and `after` are names of the trees."""
        with tempfile.TemporaryDirectory(prefix="replay-") as folder:
            files = [Path(folder) / name for name in ("before", "after")]
            for file, text in zip(files, (self.before, self.after), strict=True):
                file.write_text("" if text is None else text + "\n")
            command = ["git", "diff", "--no-index", "--no-color", "--no-ext-diff", "--", *map(str, files)]
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
        hunks = next((k for k, line in enumerate(found) if line.startswith("@@")), len(found))
        sides = zip("-+", (before, after), (self.before, self.after), strict=True)
        trees = [(3 * sign, tree + ", none" * (text is None)) for sign, tree, text in sides]
        head = [f"{sign} {self.program}: {self.text} ({tree})" for sign, tree in trees]
        return head + found[hunks:]


@dataclass(frozen=True)
class Comparison:
    """All texts of two folders."""

    programs: int
    texts: int
    differences: list[Difference]

    @property
    def summary(self) -> str:
        """One line of numbers."""
        return f"{self.programs} programs, {self.texts} texts, {len(self.differences)} differ"


def compare(before: Path, after: Path, pattern: str = "") -> Comparison:
    """The texts of programs whose names have the pattern in them."""
    suffix = store.path_in(after, "").name
    names = sorted(p.name.removesuffix(suffix) for p in after.glob(f"*{suffix}"))
    programs, texts, found = 0, 0, list[Difference]()
    for name in names:
        if pattern in name:
            programs += 1
            for text, old, new in _pairs(store.path_in(before, name), store.path_in(after, name)):
                texts += 1
                if old != new:
                    found.append(Difference(name, text, old, new))
    return Comparison(programs, texts, found)


def _pairs(before: Path, after: Path) -> Iterator[tuple[str, str | None, str | None]]:
    old, new = store.load(before) if before.exists() else {}, store.load(after)
    for text in dict.fromkeys((*new, *old)):
        yield text, old.get(text), new.get(text)
