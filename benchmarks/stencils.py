"""Stencils in reverse on a CPU, beside their values and JAX: `python -m benchmarks.stencils`, or in `make bench`.

Each is timed as value and adjoint (of its argument, for a given adjoint of the result), JAX's as slices and rolls under
`jax.jit`, in one process and in turn. Results are compared with JAX's.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks.dense import Report
from benchmarks.gpu import lbm
from benchmarks.programs import close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

SECONDS = 3.0
"""The four functions of a work take turns at least so long."""


@dataclass(frozen=True)
class Work:
    """A stencil as loops and as operations of JAX, its argument, and what its adjoint may take."""

    name: str
    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    x: Any
    most_values: float | None
    """Largest ratio to the time of the value."""
    most_ratio: float
    """Largest ratio to JAX's adjoint."""


@qd.jit
def five_points(x: Any) -> Any:
    out = qd.zeros(x.shape, x.dtype)
    for i, j in qd.ndrange((1, x.shape[0] - 1), (1, x.shape[1] - 1)):
        out[i, j] = x[i - 1, j] + x[i + 1, j] + x[i, j - 1] + x[i, j + 1] - 4 * x[i, j]
    return out


def five_points_of_slices(x: Any) -> Any:
    inner = x[:-2, 1:-1] + x[2:, 1:-1] + x[1:-1, :-2] + x[1:-1, 2:] - 4 * x[1:-1, 1:-1]
    return jnp.zeros_like(x).at[1:-1, 1:-1].set(inner)


@qd.jit
def wrapped(x: Any) -> Any:
    n, m = x.shape
    out = qd.empty(x.shape, x.dtype)
    for i, j in qd.ndrange(n, m):
        out[i, j] = x[(i - 1) % n, j] + x[(i + 1) % n, j] + x[i, (j - 1) % m] + x[i, (j + 1) % m] - 4 * x[i, j]
    return out


def wrapped_of_rolls(x: Any) -> Any:
    return sum(jnp.roll(x, by, axis) for axis in (0, 1) for by in (1, -1)) - 4 * x


@qd.jit
def differences(x: Any) -> Any:
    total = qd.zeros((), x.dtype)
    n, m, k = (size - 1 for size in x.shape)
    for i, j, p in qd.ndrange(n, m, k):
        c = x[i, j, p]
        total[()] += (x[i + 1, j, p] - c) ** 2 + (x[i, j + 1, p] - c) ** 2 + (x[i, j, p + 1] - c) ** 2
    return total[()]


def differences_of_slices(x: Any) -> Any:
    c = x[:-1, :-1, :-1]
    return jnp.sum((x[1:, :-1, :-1] - c) ** 2 + (x[:-1, 1:, :-1] - c) ** 2 + (x[:-1, :-1, 1:] - c) ** 2)


def lattice_of_rolls(f: Any) -> Any:
    moved = [jnp.roll(g, c, (2, 1, 0)) for g, c in zip(f, lbm.VELOCITIES, strict=True)]
    return jnp.stack(lbm.relaxed(moved, lbm.OMEGA))


def works(scale: float = 1.0) -> Iterator[Work]:
    """Yields the works, with sides of `scale` times those that limits are stated for."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(rng.normal(size=[int(n * scale) for n in shape]).astype(np.float32))

    yield Work("five points, 2048^2", five_points, five_points_of_slices, normal(2048, 2048), 1.5, 1.0)
    yield Work("five points, wrapped", wrapped, wrapped_of_rolls, normal(2048, 2048), 1.5, 1.0)
    yield Work("squared differences, 192^3", differences, differences_of_slices, normal(192, 192, 192), None, 0.5)
    f = jnp.asarray(lbm.inputs(int(96 * scale))["f"])
    yield Work("lattice D3Q19, 96^3", lambda f: lbm.step(f, lbm.OMEGA), lattice_of_rolls, f, 1.8, 1.0)


def adjoint(f: Callable[[Any], Any], x: Any, bar: Any) -> Any:
    """Returns the adjoint of an argument for the adjoint of the result."""
    return jax.vjp(f, x)[1](bar)[0]


def row(work: Work) -> tuple[str, bool]:
    """Returns a line about a work, and whether its adjoint was right."""
    shape = jax.eval_shape(work.theirs, work.x).shape
    bar = jnp.asarray(np.random.default_rng(1).normal(size=shape).astype(np.float32))
    functions = {
        name: (jax.jit(made), args)
        for side, f in (("qdtrace", work.ours), ("jax", work.theirs))
        for name, made, args in (
            (f"{side} value", f, (work.x,)),
            (f"{side} adjoint", partial(adjoint, f), (work.x, bar)),
        )
    }
    results = {name: np.asarray(f(*args)) for name, (f, args) in functions.items()}
    best = dict.fromkeys(functions, np.inf)
    began, rounds = time.perf_counter(), 0
    while rounds < 5 or time.perf_counter() - began < SECONDS:
        for name, (f, args) in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            best[name] = min(best[name], time.perf_counter() - start)
        rounds += 1
    ours, value, theirs = (best[name] for name in ("qdtrace adjoint", "qdtrace value", "jax adjoint"))
    reached = ours <= work.most_ratio * theirs and (work.most_values is None or ours <= work.most_values * value)
    try:
        for kind in ("value", "adjoint"):
            want = results[f"jax {kind}"]
            close(results[f"qdtrace {kind}"], want, 1e-4, 1e-5 * float(np.abs(want).max()))
        right, words = True, "reached" if reached else "NOT reached"
    except Exception as error:
        right, words = False, f"WRONG: {error}"
    times = "   ".join(f"{name} {1e3 * t:8.2f} ms" for name, t in best.items())
    values = "" if work.most_values is None else f"{ours / value:.2f} values, at most {work.most_values}; "
    return f"{work.name:28}{times}   {values}{ours / theirs:.2f} of JAX, at most {work.most_ratio}: {words}", right


def measure(root: Path | None = None, names: Sequence[str] = (), scale: float = 1.0) -> Report:
    """Runs all works, or those with one of the names in theirs; prints each row at once."""
    del root
    good, count = True, 0
    for work in works(scale):
        if not names or any(name in work.name for name in names):
            line, right = row(work)
            good, count = good and right, count + 1
            print(line, flush=True)
    return Report(f"stencils: {count} rows above", good)


if __name__ == "__main__":
    sys.exit(0 if measure(names=sys.argv[1:]).ran else 1)
