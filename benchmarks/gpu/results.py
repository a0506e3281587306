"""Writes the measured table: `python -m benchmarks.gpu.results FIGURES.json`, what a run wrote, into `RESULTS.md`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.row import HEADER, Row, summary

PAGE = Path(__file__).resolve().parents[1] / "RESULTS.md"
LIMITS: dict[str, str] = {}
"""What limits a figure that falls short, by how its name begins."""


def page(report: dict[str, Any]) -> str:
    """The page for what a run has written."""
    rows = [Row.of_json(values) for values in report["rows"]]
    lines = [
        "# Results on a GPU",
        "",
        f"Measured on {report['date']} by `python -m benchmarks.gpu` on one {report['device']}; this page is made from",
        "its figures by `python -m benchmarks.gpu.results`. [README](README.md) says what runs and how it is timed.",
        "",
        f"- {report['platform']}; {report['processor']}",
        f"- {report['versions']}",
        *([f"- tests of the GPU in the same run: {report['tests']}"] if report["tests"] else []),
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
    found = [words for start, words in LIMITS.items() if row.name.startswith(start)]
    return " ".join(found) or row.note or "not looked into"


if __name__ == "__main__":
    PAGE.write_text(page(json.loads(Path(sys.argv[1]).read_text())))
