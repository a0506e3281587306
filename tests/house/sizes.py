"""`python -m tests.house.sizes`: writes the lines of code of each package into sizes.txt, which `test_sizes` holds."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from .tables import ROOT, ROOTS

PATH = Path(__file__).parent / "sizes.txt"


def lines_of_code(text: str) -> int:
    """Returns the number of lines of a module that are not blank, comment, docstring or import."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        is_string = isinstance(value, ast.Constant) and isinstance(value.value, str)
        if is_string or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(s.strip()) and not s.strip().startswith("#") and k not in left_out for k, s in lines)


@cache
def measured() -> dict[str, int]:
    """Returns lines of code by package."""
    found: dict[str, int] = {}
    for path in sorted(p for root in ROOTS for p in (ROOT / root).rglob("*.py")):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        found[package] = found.get(package, 0) + lines_of_code(path.read_text())
    return {package: count for package, count in sorted(found.items()) if count}


def allowed() -> dict[str, int]:
    """Returns what sizes.txt says."""
    return {name: int(count) for count, name in (line.split() for line in PATH.read_text().splitlines())}


if __name__ == "__main__":
    PATH.write_text("".join(f"{count:6} {package}\n" for package, count in measured().items()))
