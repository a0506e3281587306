"""`python -m tests.house.sizes`: writes the lines of code of each package, and what readers have to learn beside them,
into sizes.txt, which `test_sizes` holds. A number falls by itself; who raises one writes it and says why.
"""

import ast
import re
from functools import cache
from pathlib import Path

from .journeys import counted
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


def concepts() -> dict[str, int]:
    """Returns mentions of `Any` where JAX has types, files that decode instructions of CPython, members by which
    programs and their sources are told apart, and questions of ARCHITECTURE.md with a second answer."""
    texts = [p.read_text() for root in ("qdtrace/compose", "qdtrace/trace") for p in (ROOT / root).rglob("*.py")]
    classes = (ROOT / "qdtrace/compose/staged_program.py", ROOT / "qdtrace/compose/source.py")
    table = (ROOT / "ARCHITECTURE.md").read_text().partition("| what stays apart, and why |")[2].partition("\n\n")[0]
    return {
        "any-in-compose-and-trace": sum(len(re.findall(r"\bAny\b", text)) for text in texts),
        "files-that-decode-instructions": sum(bool(re.search(r"^import (dis|opcode)\b", t, re.M)) for t in texts),
        "identities-of-a-program": sum(len(re.findall(r"def (\w*key|text|__eq__)\(", p.read_text())) for p in classes),
        "questions-with-a-second-answer": sum(not row.endswith("| |") for row in table.splitlines()[2:]),
    }


@cache
def measured() -> dict[str, int]:
    """Returns lines of code by package, and the numbers of `concepts`."""
    found: dict[str, int] = {}
    for path in sorted(p for root in ROOTS for p in (ROOT / root).rglob("*.py")):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        found[package] = found.get(package, 0) + lines_of_code(path.read_text())
    return {name: count for name, count in sorted({**found, **concepts()}.items()) if count}


def allowed() -> dict[str, int]:
    """Returns what sizes.txt says."""
    return {name: int(count) for count, name in (line.split() for line in PATH.read_text().splitlines())}


if __name__ == "__main__":
    known, found = allowed(), {**measured(), **counted()}
    PATH.write_text("".join(f"{min(count, known.get(name, count)):6} {name}\n" for name, count in found.items()))
