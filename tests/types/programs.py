"""The programs that a type checker sees: those of every page and notebook, and annotated ones."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
PAGES = [Path("README.md"), *sorted(p.relative_to(ROOT) for p in (ROOT / "docs").rglob("*.md"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
CODE = [ROOT / "tests/types" / name for name in ("annotated.py", "public_names.py", "mistakes.py")]

FAILING = Path("docs/errors.md")
"""Programs of this page that are fenced as `py` stand alone and end in an error; a type checker finds none in them."""
FOUND_BY_TYPES = {"waves": "the page shows what is said of qd.sin, a name that this package does not have"}
"""Functions of those programs in which a type checker has to find an error, with the reason."""
SHOWN = {
    "docs/coming-from/drjit.md": "a program of Dr.Jit, beside the same of this package",
    "docs/coming-from/numba.md": "a program of Numba",
    "docs/coming-from/taichi.md": "a program of Taichi",
    "docs/coming-from/warp.md": "a program of Warp",
    "docs/libraries.md": "needs MuJoCo, and a model that the page leaves out",
    "docs/other-arrays.md": "needs torch, CuPy and a GPU",
    "docs/torch.md": "needs torch",
}
"""Other pages with a program that is only shown (fenced as `py`), with the reason."""
LEFT_OUT = {
    "diffrax": ("reportOptionalSubscript", "`Solution.ys` may be None to it, and its own documents subscript it"),
    "torch": ("reportMissingImports", "torch is not among what these tests install"),
    "qdtrace": ("reportUnusedImport", "`import qdtrace` registers what loads saved programs"),
}
"""Rules of basedpyright that a file leaves out which has `import` of a module without `as`, with the reason."""


@dataclass
class Block:
    """A program of a page."""

    first: int
    """Its line, counted from 0."""
    code: str
    functions: set[str] = field(default_factory=set)
    """Names that `def` and `class` define in it, outermost."""
    others: set[str] = field(default_factory=set)
    """Other names that it stores to."""

    def __post_init__(self) -> None:
        for node in ast.parse(self.code).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.functions.add(node.name)
            else:
                names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
                self.others |= {n.id for n in names if isinstance(n.ctx, ast.Store)}

    def replaces(self, earlier: Block) -> bool:
        """Whether it defines a function that the earlier one has defined too."""
        ours, theirs = self.functions | self.others, earlier.functions | earlier.others
        return bool(self.functions & theirs or ours & earlier.functions)


def blocks(page: Path, fence: str) -> list[Block]:
    """The programs of a page in this fence."""
    text = (ROOT / page).read_text()
    found = re.finditer(rf"^```{fence}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(text.count("\n", 0, m.start(1)), m[1]) for m in found]


def joined(parts: list[Block]) -> str:
    """A file in which each program is where the page has it: an error names the line of the page."""
    lines: list[str] = []
    for part in parts:
        lines += [""] * (part.first - len(lines)) + part.code.splitlines()
    return "\n".join(lines) + "\n"


def files_of(page: Path) -> Iterator[str]:
    """Yields files with the programs of a page, one after the other.

    A new file begins where a program defines a function again; it goes without the program that is replaced.
    """
    parts: list[Block] = []
    for block in blocks(page, "python"):
        if replaced := [part for part in parts if block.replaces(part)]:
            yield joined(parts)
            parts = [part for part in parts if part not in replaced]
        parts.append(block)
    if parts:
        yield joined(parts)


def programs() -> dict[str, str]:
    """All files, by name."""
    files: dict[str, str] = {}
    for page in PAGES:
        name, parts = re.sub(r"\W", "_", str(page.with_suffix(""))), [*files_of(page)]
        unused = "# pyright: reportUnusedImport=false\n" if len(parts) > 1 else ""  # imports for another part
        files |= {f"{name}_{k}": code + unused for k, code in enumerate(parts)}
    for block in blocks(FAILING, "py"):
        (name,) = block.functions or {f"at_{block.first}"}
        files[f"failing_{name}"] = joined([block])
    files |= {f"notebook_{path.stem}": path.read_text() for path in NOTEBOOKS}
    for name, code in files.items():
        for module, (rule, _) in LEFT_OUT.items():
            if re.search(rf"^import {module}(?: as dfx)?(?: *#.*)?$", code, re.MULTILINE):
                files[name] += f"# pyright: {rule}=false\n"
                if rule == "reportMissingImports":
                    files[name] += '# mypy: disable-error-code="import-not-found"\n'
    return files | {path.stem: path.read_text() for path in CODE}
