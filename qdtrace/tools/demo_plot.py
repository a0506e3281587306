"""The figure of the demo: counts, best fit and likely curves; likely parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.tools.demo_model import NAMES, trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

HARE, LYNX = "tab:blue", "tab:red"


def draw_figure(
    path: Path,
    years: NDArray[Any],
    counts: NDArray[Any],
    best: NDArray[Any],
    likely: NDArray[Any],
    misfits: NDArray[Any],
) -> None:
    """Writes a PNG. `best` is one row of parameters; `likely` rows drawn by their likelihood, with their misfits."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, middle, right) = plt.subplots(
        1, 3, figsize=(15, 4.6), width_ratios=(2, 1, 1), constrained_layout=True
    )
    span = len(years) - 1
    time, hares, lynxes = trajectory(likely[:60].T, span)
    left.plot(years[0] + time, hares, color=HARE, alpha=0.08, linewidth=0.8)
    left.plot(years[0] + time, lynxes, color=LYNX, alpha=0.08, linewidth=0.8)
    time, hare, lynx = trajectory(best, span)
    left.plot(years[0] + time, hare, color=HARE, label="hare, best fit")
    left.plot(years[0] + time, lynx, color=LYNX, label="lynx, best fit")
    left.plot(years, counts[:, 0], "o", color=HARE, label="hare pelts")
    left.plot(years, counts[:, 1], "s", color=LYNX, label="lynx pelts")
    left.set(title="Hudson's Bay Company, 1900 to 1920", xlabel="year", ylabel="pelts (thousands)")
    left.set_xticks(years[::5])
    left.set_ylim(0, 1.35 * counts.max())
    left.legend(ncols=2, loc="upper right", fontsize="small")
    for axes, (a, b) in ((middle, (0, 2)), (right, (1, 3))):
        points = axes.scatter(likely[:, a], likely[:, b], c=misfits, s=5, cmap="viridis_r")
        axes.plot(best[a], best[b], "*", color="black", markersize=13, label="best fit")
        axes.set(xlabel=NAMES[a], ylabel=NAMES[b], title=f"likely draws: {NAMES[a]}, {NAMES[b]}")
        axes.legend(loc="upper right", fontsize="small")
    figure.colorbar(points, ax=right, label="sum of squared log errors")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_likely(
    draws: NDArray[Any], misfits: NDArray[Any], observations: int, count: int = 2000, seed: int = 1
) -> NDArray[Any]:
    """Indices of `count` draws taken by their likelihood, for normal errors of the logarithms.

    The variance of the errors is the best fit's misfit over its degrees of freedom.
    """
    smallest = misfits.min()
    variance = smallest / (observations - len(NAMES))
    weight = np.exp(-0.5 * (misfits - smallest) / variance, dtype=np.float64)
    return np.random.default_rng(seed).choice(len(draws), size=count, p=weight / weight.sum())
