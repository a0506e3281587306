"""A way in: the spine stays short enough to be read first, and every package says who uses it, and for what."""

import importlib
import re

import pytest

from .tables import PACKAGES, ROOT, ROOTS, row_of, users

SPINE_LINES = 4000
WITHOUT = {"qdtrace", "qdtrace.data", "qdtrace.tools", "lowering"}
"""Packages without a table: what users import, a folder of data, commands, and what only holds packages."""
INSIDE = {"qdtrace.analysis.index", "qdtrace.trace.importer.libraries", "lowering.llvm.maths"}
"""Packages that the README of the one around them describes."""


def test_every_package_has_a_table() -> None:
    found = {".".join(p.parent.relative_to(ROOT).parts) for root in ROOTS for p in (ROOT / root).rglob("__init__.py")}
    assert found - WITHOUT - INSIDE == set(PACKAGES) - INSIDE


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_says_who_imports_it(package: str) -> None:
    assert row_of(package)[0] == users()[package], "run python -m tests.house.tables"


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_names_its_entry_and_its_data(package: str) -> None:
    _, entries, data = row_of(package)
    assert entries
    assert data
    for place in (*entries, *data):
        module, _, name = place.rpartition(".")
        assert hasattr(importlib.import_module(f"{package}.{module}"), name)


def test_the_spine_is_short() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    section = text.partition("## Read first\n")[2].partition("\n## ")[0]
    files = re.findall(r"`((?:qdtrace|lowering)/[\w/]+\.py)`", section)
    assert len(files) > 10
    assert len(set(files)) == len(files)
    assert sum(len((ROOT / f).read_text().splitlines()) for f in files) <= SPINE_LINES
