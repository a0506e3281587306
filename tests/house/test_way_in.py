"""A way in: the spine stays short enough to be read first, and every package says who uses it, and for what."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "qdtrace.ir",
    "qdtrace.trace",
    "qdtrace.trace.importer",
    "qdtrace.analysis",
    "qdtrace.interpret",
    "qdtrace.passes",
    "qdtrace.autodiff",
    "qdtrace.batching",
    "qdtrace.compose",
    "lowering.legalize",
    "lowering.llvm",
    "lowering.simd",
    "lowering.simt",
    "lowering.runtime",
    "lowering.gpu",
    "lowering.cuda",
)
SPINE_LINES = 4000


def package_of(module: str) -> str:
    """The innermost of the packages that a module is in; of others the module of the first level."""
    inside = [p for p in PACKAGES if module == p or module.startswith(p + ".")]
    return max(inside, key=len) if inside else ".".join(module.split(".")[:2])


@functools.cache
def imports() -> dict[str, set[str]]:
    """For each package, who imports it, for types too."""
    found: dict[str, set[str]] = {p: set() for p in PACKAGES}
    for path in [*(ROOT / "qdtrace").rglob("*.py"), *(ROOT / "lowering").rglob("*.py")]:
        module = path.parent if path.stem == "__init__" else path.with_suffix("")
        user = package_of(".".join(module.relative_to(ROOT).parts))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                names = {package_of(f"{node.module}.{a.name}") for a in node.names}
                for used in names & found.keys() - {user}:
                    found[used].add(user)
    return found


def facts(package: str) -> list[list[str]]:
    """What the table at the head of a package's README names: who may import it, its entry, its data."""
    readme = (ROOT / package.replace(".", "/") / "README.md").read_text()
    row = re.search(r"^\| may be imported by \| entry \| data \|\n\|---\|---\|---\|\n\|(.*)\|$", readme, re.MULTILINE)
    assert row is not None, package
    return [re.findall(r"`([\w.]+)`", cell) for cell in row[1].split("|")]


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_who_may_import_it(package: str) -> None:
    allowed, _, _ = facts(package)
    assert imports()[package] <= set(allowed)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_entry_and_its_data(package: str) -> None:
    _, (entry,), (data,) = facts(package)
    for place in (entry, data):
        module, _, name = place.rpartition(".")
        assert hasattr(importlib.import_module(f"{package}.{module}"), name)


def test_the_spine_is_short() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.partition("## Read first\n")[2].partition("\n## ")[0]
    files = re.findall(r"`((?:qdtrace|lowering)/[\w/]+\.py)`", section)
    assert len(files) > 10
    assert len(set(files)) == len(files)
    assert sum(len((ROOT / f).read_text().splitlines()) for f in files) <= SPINE_LINES
