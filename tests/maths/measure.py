"""Prints the table of `lowering/llvm/maths/README.md`: `python -m tests.maths.measure [points] [names...]`."""

import sys
import time

import numpy as np

from qdtrace.ir.types import DType
from tests.maths.cases import CASES, exact, points
from tests.maths.harness import compiled, ulps

_INTERVALS = {
    "acosh": (1, 4), "log": (0.1, 9), "log2": (0.1, 9), "log1p": (-0.5, 4), "pow": (0.1, 4), "rsqrt": (0.1, 4),
    "lgamma": (0.1, 9), "digamma": (0.1, 9), "sin": (-100, 100), "cos": (-100, 100), "tan": (-100, 100),
    "erf_inv": (-1, 1), "asin": (-1, 1), "acos": (-1, 1), "atanh": (-1, 1),
}  # fmt: skip
_COUNT = 1 << 16
"""Elements of a timed array: they stay in the second-level cache."""


def _nanoseconds(name: str, dtype: DType, lanes: int) -> float:
    rng = np.random.default_rng(4)
    arguments = [rng.uniform(*_INTERVALS.get(name, (-4, 4)), _COUNT).astype(dtype.numpy)]
    if CASES[name].second:
        arguments.append(rng.uniform(-4, 4, _COUNT).astype(dtype.numpy))
    function, out = compiled(name, dtype, lanes), np.empty(_COUNT, dtype.numpy)
    best = float("inf")
    for _ in range(40):
        start = time.perf_counter()
        function(*arguments, out=out)
        best = min(best, time.perf_counter() - start)
    return best / _COUNT * 1e9


def _row(name: str, count: int) -> str:
    cells = [f"`{name}`"]
    for dtype, lanes in ((DType.f32, 16), (DType.f64, 8)):
        errors = ulps(compiled(name, dtype, lanes)(*points(name, dtype, count)), exact(name, dtype, count))
        cells += [f"{errors.max():.2f}", f"{_nanoseconds(name, dtype, lanes):.2f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """One row for each function."""
    count, names = int((sys.argv[1:] or ["2000"])[0]), sys.argv[2:] or list(CASES)
    print("| function | f32: ulp | ns | f64: ulp | ns |\n|---|---|---|---|---|")
    for name in names:
        print(_row(name, count), flush=True)


if __name__ == "__main__":
    main()
