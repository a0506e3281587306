"""`python -m qdtrace demo`: a million candidate models of real animal counts, each solved by its own thread.

Shows the progress, the best fits, the optimised graph and the time beside `jax.vmap` of the same function, and writes
a figure.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.tools.demo_model import NAMES, draw_parameters, load_counts, misfit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray


def evaluate(fits: Any, steps: Any, draws: Any, log_counts: Any, start: Any, stop: Any) -> tuple[Any, Any]:
    """Misfit and number of steps of the draws in start..stop-1; the others stay as they are."""
    for i in qd.range(start, stop):
        total, tried = misfit(draws[i], log_counts)
        fits[i] = total
        steps[i] = tried
    return fits, steps


def main(argv: Sequence[str] = ()) -> int:
    """Runs the demo; gives the exit status."""
    parser = argparse.ArgumentParser(prog="python -m qdtrace demo", description=__doc__)
    parser.add_argument("--draws", type=int, default=1_000_000, help="candidate models (default 1000000)")
    parser.add_argument("--chunks", type=int, default=25, help="steps of the progress bar (default 25)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("demo.png"))
    options = parser.parse_args(list(argv))
    if missing := [name for name in ("matplotlib", "tqdm") if importlib.util.find_spec(name) is None]:
        parser.error(f"needs {' and '.join(missing)}: install qdtrace with its extra `demo`")
    began = time.perf_counter()
    years, counts = load_counts()
    draws = jnp.asarray(draw_parameters(options.draws, options.seed))
    log_counts = jnp.log(counts)
    print(f"Hudson's Bay Company, {years[0]} to {years[-1]}: {len(years)} yearly counts of hare and lynx pelts")
    print(f"{options.draws:,} Lotka-Volterra models, each with its own adaptive Runge-Kutta 5(4) loop\n")
    kernel = qd.jit(evaluate, donate_argnums=(0, 1))
    fits, steps = _run_in_chunks(kernel, draws, log_counts, options.chunks)
    order = np.argsort(fits)
    _print_best(draws, fits, steps, order[:5])
    _print_graph(kernel, draws, log_counts)
    _compare_with_vmap(kernel, draws, log_counts, fits)
    from qdtrace.tools.demo_plot import draw_figure, draw_likely

    host = np.asarray(draws)
    likely = draw_likely(host, fits, counts.size)
    draw_figure(options.output, years, counts, host[order[0]], host[likely], fits[likely])
    print(f"\nwrote {options.output}; {time.perf_counter() - began:.1f} s in all")
    return 0


def _results(count: int) -> tuple[jax.Array, jax.Array]:
    return jnp.full((count,), jnp.inf, jnp.float32), jnp.zeros((count,), jnp.int32)


def _run_in_chunks(kernel: Any, draws: Any, log_counts: Any, chunks: int) -> tuple[NDArray[Any], NDArray[Any]]:
    from tqdm import tqdm

    n = len(draws)
    began = time.perf_counter()
    fits, steps = jax.block_until_ready(kernel(*_results(n), draws, log_counts, 0, 0))
    print(f"traced, optimised and compiled in {time.perf_counter() - began:.2f} s (an empty range was run)")
    edges = [n * k // chunks for k in range(chunks + 1)]
    with tqdm(total=n, unit=" models", unit_scale=True, ncols=90) as bar:
        for start, stop in itertools.pairwise(edges):
            fits, steps = jax.block_until_ready(kernel(fits, steps, draws, log_counts, start, stop))
            bar.update(stop - start)
    return np.asarray(fits), np.asarray(steps)


def _print_best(draws: Any, fits: NDArray[Any], steps: NDArray[Any], best: NDArray[Any]) -> None:
    print(f"steps per model: mean {steps.mean():.0f}, smallest {steps.min()}, largest {steps.max()}\n")
    print("best fits  " + "".join(f"{name:>9}" for name in NAMES) + "   misfit  steps")
    for rank, i in enumerate(best):
        row = "".join(f"{x:9.4f}" for x in np.asarray(draws[i]))
        print(f"{rank + 1:>9}  {row}{fits[i]:9.4f}{steps[i]:7d}")


def _print_graph(kernel: Any, draws: Any, log_counts: Any, lines: int = 30) -> None:
    lowered = kernel.lower(*_results(len(draws)), draws, log_counts, 0, 0)
    text = lowered.graph().splitlines()
    print(f"\noptimised graph ({len(lowered.tasks)} task, {len(text)} lines), its head:")
    for line in text[:lines]:
        print("  " + (line if len(line) <= 116 else line[:113] + "..."))
    for task in lowered.tasks:
        print(f"  emitted by {task.codegen}: {task.reason}")


def _compare_with_vmap(kernel: Any, draws: Any, log_counts: Any, fits: NDArray[Any]) -> None:
    """Times both on all draws in the order kernel, vmap, kernel, after a look at the results."""
    n = len(draws)
    reference = jax.jit(jax.vmap(misfit, (0, None)))
    expected = np.asarray(jax.block_until_ready(reference(draws, log_counts))[0])
    close = np.mean(np.abs(fits - expected) <= 0.01 * expected)
    print(f"\nagreement with jax.vmap: {100 * close:.3f} % of the misfits within 1 %")

    def run_kernel() -> object:
        return kernel(*_results(n), draws, log_counts, 0, n)

    first = _best_time(run_kernel, 3)
    theirs = _best_time(lambda: reference(draws, log_counts), 2)
    ours = min(first, _best_time(run_kernel, 3))
    print(f"all {n:,} models in one launch:  qdtrace {ours:.3f} s   jax.jit(jax.vmap(f)) {theirs:.3f} s   ", end="")
    print(f"ratio {theirs / ours:.1f}")


def _best_time(call: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(call())
        best = min(best, time.perf_counter() - began)
    return best
