"""`python -m tests.house.tables`: writes who imports a package into the table at the head of its README."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOTS = ("qdtrace", "lowering")
HEAD = "| imported by | entry | data |\n|---|---|---|\n"


def _packages() -> tuple[str, ...]:
    """Returns packages with modules of their own and a README; the package that users import has another."""
    readmes = [p for root in ROOTS for p in (ROOT / root).rglob("README.md")]
    return tuple(sorted(".".join(p.parent.relative_to(ROOT).parts) for p in readmes if HEAD in p.read_text()))


PACKAGES = _packages()


def readme_of(package: str) -> Path:
    """Returns the README of a package."""
    return ROOT / package.replace(".", "/") / "README.md"


def package_of(module: str) -> str:
    """Returns the innermost of PACKAGES that a module is in, else its name up to the second level."""
    inside = [p for p in PACKAGES if module == p or module.startswith(p + ".")]
    return max(inside, key=len) if inside else ".".join(module.split(".")[:2])


@functools.cache
def users() -> dict[str, list[str]]:
    """Returns for each package who imports it, for types too."""
    found: dict[str, set[str]] = {p: set() for p in PACKAGES}
    for path in (p for root in ROOTS for p in (ROOT / root).rglob("*.py")):
        module = path.parent if path.stem == "__init__" else path.with_suffix("")
        user = package_of(".".join(module.relative_to(ROOT).parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = {package_of(f"{node.module}.{a.name}") for a in node.names}
                for used in names & found.keys() - {user}:
                    found[used].add(user)
    return {p: sorted(u) for p, u in found.items()}


def row_of(package: str) -> list[list[str]]:
    """Returns what the table of a package names: who imports it, its entry, its data."""
    row = re.search(re.escape(HEAD) + r"\|(.*)\|$", readme_of(package).read_text(), re.MULTILINE)
    assert row is not None, package
    return [re.findall(r"`([\w.]+)`", cell) for cell in row[1].split("|")]


def main() -> None:
    """Writes all tables."""
    for package in PACKAGES:
        cells = [", ".join(f"`{name}`" for name in names) for names in (users()[package], *row_of(package)[1:])]
        row = f"{HEAD}| {' | '.join(cells)} |"
        path, text = readme_of(package), readme_of(package).read_text()
        path.write_text(re.sub(re.escape(HEAD) + r"\|.*\|$", lambda _, row=row: row, text, count=1, flags=re.MULTILINE))


if __name__ == "__main__":
    main()
