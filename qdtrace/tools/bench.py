"""`python -m qdtrace bench`: runs `benchmarks.run` of the source tree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] = ()) -> int:
    """Runs the benchmarks with this interpreter and returns the exit status."""
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "run.py").exists():
        print("needs the source tree: benchmarks are not part of the installed package", file=sys.stderr)
        return 2
    return subprocess.call([sys.executable, "-m", "benchmarks.run", *argv], cwd=root)
