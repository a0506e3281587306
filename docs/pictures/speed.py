"""Plots of figures that were measured: `python docs/pictures/speed.py` in the source tree; needs matplotlib.

Figures are those of benchmarks/RESULTS.md, and of the CPU those of benchmarks/results-cpu.json. None is typed in here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
BENCHMARKS = HERE.parents[1] / "benchmarks"
OURS, FASTER, SLOWER = "#263238", "#1565c0", "#e65100"
HEADLINE = (
    "oscillator, 65536 lanes x 350 to 2000 steps: vmap",
    "oscillator, 4194304 lanes x 350 to 2000 steps: vmap",
    "Kepler, 1048576 lanes: vmap",
    "gradient of Lorenz, 100 steps: JAX, state in three",
    "histogram: JAX",
    "prefix sum: JAX",
    "sum: JAX",
    "MPM, a step",
    "gradient of an MPM step: Quadrants",
    "Lorenz",
    "gradient of Lorenz, 100 steps",
    "Mandelbrot",
    "oscillator, 4194304 lanes x 350 to 2000 steps",
    "gradient of ragged rows: staged",
    "call of 3 tasks, alone",
)
"""What the first picture shows: one row of each kind, those that fall short among them."""


@dataclass(frozen=True)
class Row:
    """A figure beside a peer."""

    work: str
    peer: str
    factor: float
    """Time of the peer over ours."""

    @property
    def label(self) -> str:
        work, _, more = self.work.partition(": JAX, ")
        return f"{work.partition(': ')[0]}{', ' + more if more else ''}  |  {self.peer}"


def rows_of(page: Path) -> list[Row]:
    """Rows of the table of a page that have a peer."""
    found: list[Row] = []
    for line in page.read_text().splitlines():
        cells = [c.strip() for c in line.strip("|").split(" | ")]
        if len(cells) < 4 or not (ours := re.match(r"([\d.]+) [mu]s$", cells[1])):
            continue
        if beside := re.match(r"(.+) ([\d.]+(?:e\+\d+)?)$", cells[2]):
            found.append(Row(cells[0], beside[1], float(beside[2]) / float(ours[1])))
    return found


def plot(name: str, rows: list[Row], title: str) -> None:
    """Writes docs/pictures/NAME.svg, and NAME-narrow.svg for telephones, which has the labels above the bars."""
    for narrow in (False, True):
        _plot(f"{name}-narrow" if narrow else name, rows, title, narrow)


def _plot(name: str, rows: list[Row], title: str, narrow: bool) -> None:
    """Writes docs/pictures/NAME.svg: a bar a row, from 1 (as fast as the peer) to its factor."""
    size = (3.85, 0.8 + 0.36 * len(rows)) if narrow else (8, 0.8 + 0.27 * len(rows))
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    for k, row in enumerate(reversed(rows)):
        color = FASTER if row.factor >= 1 else SLOWER
        axis.barh(k, row.factor - 1, left=1, color=color, height=0.4 if narrow else 0.7)
        right = row.factor >= 1
        axis.annotate(
            f"{row.factor:.0f}" if row.factor >= 100 else f"{row.factor:.3g}",
            (row.factor, k),
            (4 if right else -4, 0),
            textcoords="offset points",
            va="center",
            ha="left" if right else "right",
            fontsize=8,
        )
        if narrow:
            label, ends = row.label.replace("`", ""), ("axes fraction", "data")
            axis.annotate(label, (0, k + 0.25), xycoords=ends, va="bottom", fontsize=7)
    axis.set_xscale("log")
    low, high = min(r.factor for r in rows), max(r.factor for r in rows)
    axis.set_xlim(min(0.7, 0.4 * low), max(1.5, 2.2 * high))
    if narrow:
        axis.axvline(1, color="#b0bec5", linewidth=1, zorder=0)  # behind the labels
        axis.set_yticks([])
        axis.set_ylim(-0.5, len(rows))
    else:
        axis.axvline(1, color=OURS, linewidth=1)
        axis.set_yticks(range(len(rows)), [r.label for r in reversed(rows)], fontsize=8)
    axis.set_xlabel("time of the peer / time of qdtrace", fontsize=8)
    axis.set_title(title, fontsize=8 if narrow else 10, loc="left", wrap=True)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(length=0, labelsize=8)
    axis.xaxis.set_minor_formatter("")
    axis.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    figure.savefig(HERE / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Draws all plots."""
    mpl.rcParams.update({"svg.hashsalt": "qdtrace", "svg.fonttype": "none", "font.family": "sans-serif"})
    gpu = rows_of(BENCHMARKS / "RESULTS.md")
    chosen = {row.work: row for row in gpu}
    plot("speed", [chosen[work] for work in HEADLINE], "One NVIDIA H200")
    plot("gpu-jax", [r for r in gpu if r.peer.startswith("jax")], "Beside JAX, one H200")
    others = [r for r in gpu if r.peer.startswith(("CUDA", "Quadrants"))]
    plot("gpu-cuda", others, "Beside CUDA by hand and Quadrants, one H200")
    plot("gpu-copy", [r for r in gpu if "copy" in r.peer], "Beside a copy of the same bytes, one H200")
    cpu = json.loads((BENCHMARKS / "results-cpu.json").read_text())
    rows = [Row(f"{r['program']}, {r['size']}", r["peer"], r["peer_min"] / r["ours_min"]) for r in cpu["rows"]]
    plot("cpu", rows, cpu["machine"])


if __name__ == "__main__":
    main()
