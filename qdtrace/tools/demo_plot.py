"""The figure of the demo: counts and fit, the descent, and the ends of its starting points."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.tools.demo_model import CARPENTER, NAMES, trajectory

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

HARE, LYNX = "tab:blue", "tab:red"
POINTS, LIKELY = 4000, 60


def draw_figure(
    path: Path,
    years: NDArray[Any],
    counts: NDArray[Any],
    fit: tuple[NDArray[Any], NDArray[Any]],
    curves: NDArray[Any],
    paths: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
) -> None:
    """Writes a PNG.

    `fit` is the logarithms of the best parameters and their covariance; `curves` the smallest misfit and its quantiles
    0.1, 0.5 and 0.9, one row per iteration; `paths` the logarithms of all starting points and of their ends, one row
    each, and the misfits there.
    """
    from matplotlib.figure import Figure  # only here: an extra

    figure = Figure(figsize=(16, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(2, 1, 1.2))
    _draw_populations(left, years, counts, *fit)
    for curve, style, label in zip(curves.T, ("-", "--", ":", "-."), ("best", "10 %", "median", "90 %"), strict=True):
        middle.plot(curve, style, color="black", label=label)
    middle.set(title="descent of all starting points", xlabel="iteration", ylabel="sum of squared log errors")
    middle.set_yscale("log")
    middle.legend(fontsize="small")
    points = _draw_ends(right, fit[0], *(part[:POINTS] for part in paths))
    figure.colorbar(points, ax=right, label="log10 of the sum of squared log errors")
    figure.savefig(path, dpi=110)


def _draw_populations(
    axes: Any, years: NDArray[Any], counts: NDArray[Any], best: NDArray[Any], covariance: NDArray[Any]
) -> None:
    """Draws counts, the best fit and, faintly, models drawn from the fit's distribution of errors."""
    span = len(years) - 1
    if np.isfinite(covariance).all():
        likely = np.random.default_rng(1).multivariate_normal(best, covariance, LIKELY)
        time, hares, lynxes = trajectory(np.exp(likely.T), span)
        axes.plot(years[0] + time, hares, color=HARE, alpha=0.08, linewidth=0.8)
        axes.plot(years[0] + time, lynxes, color=LYNX, alpha=0.08, linewidth=0.8)
    time, hare, lynx = trajectory(np.exp(best), span)
    axes.plot(years[0] + time, hare, color=HARE, label="hare, best fit")
    axes.plot(years[0] + time, lynx, color=LYNX, label="lynx, best fit")
    axes.plot(years, counts[:, 0], "o", color=HARE, label="hare pelts")
    axes.plot(years, counts[:, 1], "s", color=LYNX, label="lynx pelts")
    axes.set(title="Hudson's Bay Company, 1900 to 1920", xlabel="year", ylabel="pelts (thousands)")
    axes.set_xticks(years[::5])
    axes.set_ylim(0, 1.35 * counts.max())
    axes.legend(ncols=2, loc="upper right", fontsize="small")


def _draw_ends(axes: Any, best: NDArray[Any], starts: NDArray[Any], ends: NDArray[Any], fits: NDArray[Any]) -> Any:
    """Draws starting points and their ends, as alpha and gamma; returns the points for a colour bar.

    Small oscillations have the period 2 pi / sqrt(alpha gamma): ends lie along curves of one period, which fits the
    counts, or along fractions of it.
    """
    axes.plot(*np.exp(starts[:, [0, 2]]).T, ".", color="silver", markersize=3, label="starts")
    colours = np.log10(np.where(np.isfinite(fits), fits, np.nan))
    points = axes.scatter(*np.exp(ends[:, [0, 2]]).T, c=colours, s=5, cmap="viridis_r", vmax=1.7, label="ends")
    axes.plot(*np.exp(best[[0, 2]]), "*", color="black", markersize=13, label="best fit")
    axes.plot(CARPENTER[0], CARPENTER[2], "x", color="tab:red", markersize=10, label="Carpenter (2018)")
    axes.set(title="where they end", xlabel=NAMES[0], ylabel=NAMES[2], xlim=(0, 2.5), ylim=(0, 2.5))
    axes.legend(loc="upper right", fontsize="small", markerscale=1.5)
    return points
