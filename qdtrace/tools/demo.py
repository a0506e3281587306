"""`python -m qdtrace demo`: fits a predator-prey model to counts of lynx and hare from 65,536 starting points at once.

Each model is solved by its own thread with its own adaptive steps, and `jax.grad` goes through that loop. Shows the
descent, the fit beside published values, the optimised graph and the time beside JAX alone, and writes a figure: after
a tenth of the descent, and at its end.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.tools.demo_fit import covariance, descent, gradients, misfits, one
from qdtrace.tools.demo_model import CARPENTER, CARPENTER_80, HOWARD, NAMES, draw_starts, load_counts
from qdtrace.tools.demo_plot import draw_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

SHOWN = (0.0, 0.1, 0.5, 0.9)
"""Quantiles of the misfits that the figure shows."""
COMPARED = 4096
"""Number of models whose gradients JAX computes too: all of them would take it longer than the descent."""


def main(argv: Sequence[str] = ()) -> int:
    """Runs the demo and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qdtrace demo", description=__doc__)
    parser.add_argument("--starts", type=int, default=65_536, help="starting points (default 65536)")
    parser.add_argument("--iterations", type=int, default=150, help="iterations of the descent (default 150)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo.png"))
    options = parser.parse_args(list(argv))
    if missing := [name for name in ("matplotlib", "optax", "tqdm") if importlib.util.find_spec(name) is None]:
        parser.error(f"needs {' and '.join(missing)}: install qdtrace with its extra `demo`")
    began = time.perf_counter()
    years, counts = load_counts()
    log_counts = jnp.log(counts)
    starts = jnp.asarray(draw_starts(options.starts, options.seed))
    print(f"Hudson's Bay Company, {years[0]} to {years[-1]}: {len(years)} yearly counts of hare and lynx pelts")
    print(f"{options.starts:,} Lotka-Volterra models, each with its own adaptive Runge-Kutta 5(4) loop\n")

    def draw(ends: Any, curves: NDArray[Any], spread: NDArray[Any] | None = None) -> tuple[Any, Any, NDArray[Any]]:
        """Writes the figure of a descent so far; returns the best fit, its covariance and all misfits."""
        fits = np.asarray(misfits(ends, log_counts)[0])
        best = ends[np.argmin(fits)]
        spread = covariance(best, log_counts) if spread is None else spread
        paths = np.asarray(starts), np.asarray(ends), fits
        draw_figure(options.output, years, counts, (np.asarray(best), spread), curves, paths)
        return best, spread, fits

    def preview(logs: Any, curves: NDArray[Any]) -> None:
        draw(logs, curves, np.full((len(NAMES), len(NAMES)), np.nan))
        print(f"wrote {options.output} after {len(curves)} iterations; it is drawn anew at the end", flush=True)

    best, spread, fits = draw(*_descend(starts, log_counts, options.iterations, preview))
    print(f"wrote {options.output}")
    _print_fit(best, spread, fits)
    _print_graph(starts, log_counts)
    _compare_with_jax(starts, log_counts)
    print(f"\n{options.output} shows the fit; {time.perf_counter() - began:.1f} s in all")
    return 0


def _descend(
    logs: Any, log_counts: Any, iterations: int, preview: Callable[[Any, NDArray[Any]], None]
) -> tuple[Any, NDArray[Any]]:
    """Runs the descent; returns the final logarithms, and the shown quantiles of the misfits, one row per iteration.

    It tells from the time of the first iteration how long all take, and shows a tenth of the way by `preview`.
    """
    from tqdm import tqdm  # only here: an extra

    start, improve = descent(iterations)
    memory = start(logs)
    began = time.perf_counter()
    compiled = improve.lower(logs, memory, log_counts).compile()
    print(f"traced, differentiated, optimised and compiled in {time.perf_counter() - began:.2f} s", flush=True)
    curves: list[NDArray[Any]] = []
    solved, seconds = 0, 0.0
    with tqdm(total=iterations, unit=" iterations", ncols=100) as bar:
        for number in range(1, iterations + 1):
            began = time.perf_counter()
            logs, memory, fits, steps = compiled(logs, memory, log_counts)
            curves.append(np.quantile(np.asarray(fits), SHOWN))
            solved += int(np.asarray(steps).sum())
            seconds += time.perf_counter() - began
            if number == 1:
                with tqdm.external_write_mode():
                    took = f"the first of {iterations} iterations took {1e3 * seconds:.0f} ms"
                    expected = f"about {iterations * seconds:.0f} s for the descent"
                    print(f"{took}: {expected}, in proportion to its {len(logs):,} --starts", flush=True)
            if number == max(2, iterations // 10):
                with tqdm.external_write_mode():
                    preview(logs, np.array(curves))
            bar.set_postfix(best=f"{curves[-1][0]:.4f}", median=f"{curves[-1][2]:.2f}", refresh=False)
            bar.update()
    models = len(logs) * iterations
    print(f"{1e3 * seconds / iterations:.0f} ms an iteration: {models / seconds:,.0f} gradients a second,")
    print(f"  through {solved / seconds:,.0f} steps of the solver a second, {solved / models:.0f} a model\n")
    return logs, np.array(curves)


def _print_fit(best: Any, spread: NDArray[Any], fits: NDArray[Any]) -> None:
    """Prints the fit beside published values, with standard errors derived from those of the logarithms."""
    values = np.exp(np.asarray(best, np.float64))
    errors = values * np.sqrt(np.diag(spread))
    share = np.mean(fits < 1.01 * fits.min())
    print(f"smallest misfit {fits.min():.4f}, reached within 1 % from {100 * share:.1f} % of the starts")
    print(" " * 16 + "fit  std. error   Carpenter   80 % interval     Howard")
    for k, name in enumerate(NAMES):
        row = f"{name:>9}{values[k]:10.4f}{errors[k]:12.4f}{CARPENTER[k]:>12}"
        if k < len(HOWARD):
            low, high = CARPENTER_80[k]
            row += f"{low:>8} to {high:<5}{HOWARD[k]:>10}"
        print(row)
    print("hare and lynx: populations of the first year; Carpenter (2018): posterior means, by Stan; Howard (2009)")


def _print_graph(logs: Any, log_counts: Any) -> None:
    lowered = misfits.lower(logs, log_counts)
    text = lowered.graph().splitlines()
    print(f"\noptimised graph of the misfits ({len(lowered.tasks)} task, {len(text)} lines), its head:")
    for line in text[:30]:
        print("  " + (line if len(line) <= 116 else line[:113] + "..."))
    for task in lowered.tasks:
        print(f"  emitted by {task.codegen}: {task.reason}")
    for choice in qd.jit(gradients).lower(logs, log_counts).storage:
        print(f"reverse mode of the solver's loop: {choice.reason}")


def _compare_with_jax(logs: Any, log_counts: Any) -> None:
    """Compares misfits and gradients at the starting points with JAX's, and prints differences and times.

    JAX has no reverse mode for a loop of unknown trip count, so its gradients are six directions of forward mode.
    """
    try:
        jax.grad(one, has_aux=True)(logs[0], log_counts)
    except ValueError as error:
        print(f"\njax.grad of the same function without qdtrace: {str(error).split('. ')[0]}.")
    few = logs[:COMPARED]
    misfit_time = _compare("misfits", misfits, "jax.vmap", jax.vmap(one, (0, None)), logs, log_counts)
    forward = jax.vmap(jax.jacfwd(one, has_aux=True), (0, None))
    _compare("gradients", gradients, "jax.vmap of jax.jacfwd", forward, few, log_counts)
    ratio = _best_time(jax.jit(gradients), logs, log_counts) / misfit_time
    print(f"all {len(logs):,} gradients with their misfits take {ratio:.1f} times as long as the misfits alone")


def _compare(what: str, ours: Any, name: str, theirs: Any, logs: Any, log_counts: Any) -> float:
    """Prints differences and times of two equivalent functions; returns the time of the first in seconds."""
    ours, theirs = jax.jit(ours), jax.jit(theirs)
    got, want = (np.asarray(f(logs, log_counts)[0]).reshape(len(logs), -1) for f in (ours, theirs))
    apart = np.linalg.norm(got - want, axis=1) / np.linalg.norm(want, axis=1)
    middle, most = np.nanquantile(apart, (0.5, 0.99))
    print(f"{what} of {len(logs):,} models: relative differences {middle:.0e} (median), {most:.0e} (99 %);")
    mine, other = _best_time(ours, logs, log_counts), _best_time(theirs, logs, log_counts, repeats=2)
    print(f"  qdtrace {mine:.4f} s, {name} {other:.4f} s, ratio {other / mine:.1f}")
    return mine


def _best_time(call: Callable[..., object], *arguments: Any, repeats: int = 5) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call(*arguments))
        best = min(best, time.perf_counter() - began)
    return best
