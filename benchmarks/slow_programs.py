"""Times the pairs of docs/performance.md: `python -m benchmarks.slow_programs` in the source tree.

The page defines `slow` and `fast` of each section and calls `same(slow, fast, *inputs)`. Here a clock takes the place
of `same`: both run in turn in one process, and the ratio of the smallest times is printed beside the section's title.
"""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).resolve().parents[1] / "docs" / "performance.md"
SECONDS = 3.0
"""Both take turns for so long."""


def smallest_times(*functions: Callable[[], Any]) -> list[float]:
    """Seconds of the fastest call of each, called in turn."""
    best = [float("inf")] * len(functions)
    for function in functions:
        jax.block_until_ready(function())
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for k, function in enumerate(functions):
            began = time.perf_counter()
            jax.block_until_ready(function())
            best[k] = min(best[k], time.perf_counter() - began)
    return best


def main() -> None:
    """Runs the page and prints a table."""
    names: dict[str, Any] = {}
    title = ""

    def timed(slow: Callable[..., Any], fast: Callable[..., Any], *inputs: Any) -> None:
        a, b = smallest_times(lambda: slow(*inputs), lambda: fast(*inputs))
        print(f"| {title} | {1e3 * a:.3g} ms | {1e3 * b:.3g} ms | {a / b:.3g} |", flush=True)

    print("| program | slow | fast | factor |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for k, (heading, code) in enumerate(
            re.findall(r"^#+ ([^\n]*)$|^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        ):
            if heading:
                title = heading
                continue
            script = Path(folder) / f"block{k}.py"  # tracing reads source, so there must be a file
            script.write_text(code)
            exec(compile(code, str(script), "exec"), names)
            if "same" in names:
                names["same"] = timed


if __name__ == "__main__":
    main()
