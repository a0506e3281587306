"""Modules form no circle: whoever reads one file can read what it needs first."""

from __future__ import annotations

from graphlib import TopologicalSorter

import grimp


def test_no_modules_import_each_other() -> None:
    """Imports for types count, wherever they stand."""
    graph = grimp.build_graph("qdtrace", "lowering", cache_dir=None)
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    assert len(imports) > 300
    TopologicalSorter(imports).prepare()  # raises a CycleError that names the circle
