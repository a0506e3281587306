"""Modules form no circle: whoever reads one file can read what it needs first."""

from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]


def test_no_modules_import_each_other() -> None:
    """Imports for types count, wherever they stand."""
    graph = grimp.build_graph("qdtrace", "lowering", cache_dir=None)
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    files = [f for package in ("qdtrace", "lowering") for f in (ROOT / package).rglob("*.py")]
    assert len(imports) == len(files)
    TopologicalSorter(imports).prepare()  # raises a CycleError that names the circle
