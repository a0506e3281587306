"""Writes the measured table: `python -m benchmarks.gpu.results FIGURES.json`, what a run wrote, into `RESULTS.md`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.row import HEADER, Row, summary

PAGE = Path(__file__).resolve().parents[1] / "RESULTS.md"
ALL_COUNTED = "counted for all threads that could run; those with stacks in scratch are fewer."
LIMITS = {
    "histogram": "within the spread: 1.18, 1.19 and 1.31 were measured in three runs.",
    "call of 3 tasks": "what a direct call looks at in Python before JAX's dispatch: 1.5 to 3 us, half of it for "
    "checks that failed in earlier calls and for options. The function of JAX behind it takes 0.98 of `x + 1`, where "
    "both took turns.",
    "Kepler": "a few lanes stay above the tolerance and run all 100 steps, at huge angles.",
    "gradient of Lorenz, 100 steps: JAX": "the factor was asked of JAX with the state in one array.",
    "gradient of Lorenz, 10000 steps: stacks": ALL_COUNTED,
    "gradient of Lorenz, `while`": ALL_COUNTED,
    "MPM, a step": "indices of nodes are checked; arguments that are not donated are copied first.",
}
"""Reasons why figures fall short, by the start of their names; the longest match counts."""


def page(report: dict[str, Any]) -> str:
    """Returns the page for the report of a run."""
    rows = [Row.of_json(values) for values in report["rows"]]
    lines = [
        "# Results on a GPU",
        "",
        f"Measured on {report['date']} by `python -m benchmarks.gpu` on one {report['device']}; this page is made from",
        "its figures by `python -m benchmarks.gpu.results`. [README](README.md) says what runs and how it is timed.",
        "",
        "![Times of peers over times of qdtrace](../docs/pictures/speed.svg)",
        "",
        f"- {report['platform']}; {report['processor']}",
        f"- {report['versions']}",
        *([f"- tests of the GPU: {report['tests']}"] if report["tests"] else []),
        "",
        "Times are medians of calls in a queue. What stands beside ours was measured in the same run; the ratio is",
        "ours over it, or it over ours where ours is to be faster. Nothing that falls short is left out.",
        "",
        "| " + " | ".join((*HEADER[:5], "reached", "note")) + " |",
        "|" + "---|" * len(HEADER),
        *("| " + " | ".join(_plain(cell) for cell in row.cells) + " |" for row in rows),
        "",
        *summary(rows).splitlines()[:1],
    ]
    short = [r for r in rows if r.failed or r.reached is False or (r.asked is not None and r.reached is None)]
    if short:
        lines += ["", "## What falls short", "", *(f"- {r.name}: {_why(r)}" for r in short)]
    return "\n".join(lines) + "\n"


def _plain(cell: str) -> str:
    return cell.replace("|", "/")


def _why(row: Row) -> str:
    starts = [start for start in LIMITS if row.name.startswith(start)]
    return "; ".join(filter(None, [row.note, LIMITS[max(starts, key=len)] if starts else ""])) or "not looked into"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(Path(sys.argv[1]).read_text())))
