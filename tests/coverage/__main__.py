"""`python -m tests.coverage`: runs the sweep and writes the part of docs/coverage.md on functions."""

import sys

import numpy as np

from . import document, sweep
from .calls import TABLE, function_of


def main(names: list[str]) -> int:
    """Sweeps all functions (or these), prints what is not equal, and writes the page when all were swept."""
    results: document.Results = {}
    for module, entries in TABLE.items():
        for name, entry in entries.items():
            if not entry.calls or function_of(module, name) is None or (names and name not in names):
                continue
            for dtype in (np.float32, np.float64):
                found = sweep.outcome(entry, dtype)
                results[module, name, np.dtype(dtype).name] = found
                if found.kind != "equal":
                    print(module, name, np.dtype(dtype).name, found.kind, found.detail, flush=True)
    if not names:
        document.PATH.write_text(document.with_rules(document.page(results), document.PATH.read_text()))
    return int(any(r.kind in ("wrong", "crash") for r in results.values()))


sys.exit(main(sys.argv[1:]))
