"""The timed programs: inputs, a check of the results, sizes, and the factors to reach over each peer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import constants as c

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]
    Outputs = tuple[NDArray[Any], ...]


class WrongResultError(Exception):
    """A peer's output is not what the program computes."""


@dataclass(frozen=True)
class Program:
    """One work to time."""

    name: str
    sizes: tuple[int, ...]
    """Sizes from small to large; `size` is the one that the factors are stated for."""
    size: int
    unit: str
    inputs: Callable[[int], Arrays]
    check: Callable[[Arrays, Outputs], str]
    """Returns a line about the accuracy; raises WrongResultError."""
    goals: Mapping[str, float]
    """Least ratio of a peer's time to ours, by peer."""
    context: tuple[str, ...] = field(default=())
    """Peers shown without a factor to reach."""
    limits: Mapping[str, float] = field(default_factory=dict[str, float])
    """Largest ratio of our time to a peer's, by peer."""
    ours: str = "qdtrace"
    """Name of the program of ours that is timed beside the peers."""
    other_checks: Mapping[str, Callable[[Arrays, Outputs], str]] = field(default_factory=dict)
    """Checks for peers that compute something else, by peer."""

    @property
    def peers(self) -> tuple[str, ...]:
        return (*self.limits, *self.goals, *self.context)


def sample(n: int, most: int = 512) -> NDArray[Any]:
    """Indices of at most that many of `n` elements, evenly spread."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))


def close(got: NDArray[Any], want: NDArray[Any], rtol: float, atol: float, part: float = 1.0) -> str:
    """Raises WrongResultError unless at least `part` of the elements are within the tolerance."""
    good = float(np.mean(np.abs(got.astype(np.float64) - want) <= atol + rtol * np.abs(want)))
    if not good >= part:
        raise WrongResultError(f"only {100 * good:.2f} % of a sample within rtol {rtol:g}, atol {atol:g}")
    return f"{100 * good:.4g} % within rtol {rtol:g}, atol {atol:g}"


def lorenz_inputs(n: int) -> Arrays:
    return {"rho": np.linspace(0, 21, n).astype(np.float32)}


def lorenz_check(given: Arrays, out: Outputs) -> str:
    at = sample(len(given["rho"]))
    rho = given["rho"][at].astype(np.float64)
    h = c.LORENZ_DT

    def slope(s: NDArray[Any]) -> NDArray[Any]:
        return np.array([10 * (s[1] - s[0]), s[0] * (rho - s[2]) - s[1], s[0] * s[1] - 8 / 3 * s[2]])

    state = np.array([np.ones_like(rho), np.zeros_like(rho), np.zeros_like(rho)])
    for _ in range(c.LORENZ_STEPS):
        k1 = slope(state)
        k2 = slope(state + 0.5 * h * k1)
        k3 = slope(state + 0.5 * h * k2)
        k4 = slope(state + h * k3)
        state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    # a thousand steps of f32 roundings, each up to 6e-8 of values around 10
    return close(out[0][at], state[0], 1e-4, 1e-4)


def mandelbrot_inputs(n: int) -> Arrays:
    at = np.arange(n, dtype=np.float32) * np.float32(3) / np.float32(n)
    return {"cx": at - np.float32(2), "cy": at - np.float32(1.5)}


def mandelbrot_check(given: Arrays, out: Outputs) -> str:
    n = len(given["cx"])
    rows = sample(n, 8)
    cx = np.broadcast_to(given["cx"], (len(rows), n))
    cy = given["cy"][rows][:, None]
    x, y, k = np.zeros(cx.shape, np.float32), np.zeros(cx.shape, np.float32), np.zeros(cx.shape, np.int32)
    live = np.ones(cx.shape, bool)
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(c.MANDELBROT_LIMIT):
            live &= x * x + y * y < 4
            k += live
            x, y = x * x - y * y + cx, 2 * x * y + cy
    # the border of the set is chaotic: another rounding moves the count of some points
    return close(out[0].reshape(n, n)[rows], k, 0, 0, part=0.97)


def kepler_inputs(n: int) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "e": rng.uniform(0, 0.99, n).astype(np.float32),
        "mean": rng.uniform(0, 2 * np.pi, n).astype(np.float32),
    }


def kepler_check(given: Arrays, out: Outputs) -> str:
    e, mean, x = (a.astype(np.float64) for a in (given["e"], given["mean"], out[0]))
    # f32 cannot always reach the tolerance: E is up to 6.3, where one unit in the last place is 5e-7
    return close(x - e * np.sin(x), mean, 0, 3e-6, part=0.999)


def ragged_inputs(rows: int) -> Arrays:
    rng = np.random.default_rng(0)
    lengths = np.minimum(rng.geometric(1 / 16, rows), 256)
    ptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    entries = int(ptr[-1])
    return {
        "ptr": ptr,
        "col": rng.integers(0, rows, entries).astype(np.int32),
        "w": rng.standard_normal(entries).astype(np.float32),
        "x": rng.standard_normal(rows).astype(np.float32),
    }


def ragged_check(given: Arrays, out: Outputs) -> str:
    ptr, col, w, x = given["ptr"], given["col"], given["w"].astype(np.float64), given["x"].astype(np.float64)
    at = sample(len(x))
    want = []
    for i in at:
        acc = 0.5
        for j in range(ptr[i], ptr[i + 1]):
            acc = np.sin(acc) + w[j] * x[col[j]]
        want.append(acc)
    # errors of earlier terms are multiplied by cos(acc), which is at most 1
    return close(out[0][at], np.array(want), 1e-5, 2e-5)


def nearest_inputs(queries: int) -> Arrays:
    rng = np.random.default_rng(0)
    return {
        "queries": rng.uniform(size=(queries, 3)).astype(np.float32),
        "points": rng.uniform(size=(4096, 3)).astype(np.float32),
    }


def nearest_check(given: Arrays, out: Outputs) -> str:
    at = sample(len(given["queries"]), 256)
    queries, points = given["queries"][at].astype(np.float64), given["points"].astype(np.float64)
    squared = ((queries[:, None] - points) ** 2).sum(-1)
    distances, indices = out[0][at], out[1][at]
    close(np.take_along_axis(squared, indices, 1), np.sort(squared, 1)[:, : c.NEIGHBOURS], 1e-5, 1e-7)
    return close(distances, np.sort(squared, 1)[:, : c.NEIGHBOURS], 1e-5, 1e-7)


def stream_inputs(n: int) -> Arrays:
    return {"x": np.random.default_rng(0).uniform(-10, 10, n).astype(np.float32)}


def _stream_check(function: Any) -> Callable[[Arrays, Outputs], str]:
    def check(given: Arrays, out: Outputs) -> str:
        at = sample(len(given["x"]), 100_000)
        # 4 units in the last place; XLA's own sin is off by more near its zeros
        return close(out[0][at], function(given["x"][at].astype(np.float64)), 4.8e-7, 1e-6)

    return check


def sum_check(given: Arrays, out: Outputs) -> str:
    x = given["x"].astype(np.float64)
    # partial sums are of the order of the root of n, and so are n of their roundings together: far below this part of
    # the magnitudes, while a chunk that is missing is above it
    return close(out[0].reshape(()), x.sum(), 0, 1e-7 * float(np.abs(x).sum()))


def histogram_inputs(n: int) -> Arrays:
    return {"k": np.random.default_rng(0).integers(0, c.HISTOGRAM_BINS, n).astype(np.int32)}


def histogram_check(given: Arrays, out: Outputs) -> str:
    if not np.array_equal(out[0], np.bincount(given["k"], minlength=c.HISTOGRAM_BINS)):
        raise WrongResultError("wrong counts")
    return "exact"


def chain_check(given: Arrays, out: Outputs) -> str:
    at = sample(len(given["x"]), 100_000)
    x = given["x"][at].astype(np.float64)
    # nothing cancels; the square doubles the few roundings before it
    return close(out[0][at], ((np.sqrt(9 * x * x + 1) + x / 2) ** 2 - x) / 4, 1e-6, 0)


def springs_inputs(side: int) -> Arrays:
    rng = np.random.default_rng(0)
    at = np.arange(side * side, dtype=np.int32).reshape(side, side)
    across = np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1)
    down = np.stack([at[:-1].ravel(), at[1:].ravel()], 1)
    edge = np.concatenate([across, down])
    points = np.stack(np.divmod(at.ravel(), side), 1)
    return {
        "x": (points + rng.uniform(-0.1, 0.1, points.shape)).astype(np.float32),
        "v": rng.uniform(-1, 1, points.shape).astype(np.float32),
        "edge": edge,
        "rest": np.ones(len(edge), np.float32),
    }


def springs_check(given: Arrays, out: Outputs) -> str:
    x, v, edge = given["x"].astype(np.float64), given["v"].astype(np.float64), given["edge"]
    d = x[edge[:, 1]] - x[edge[:, 0]]
    n = np.linalg.norm(d, axis=1, keepdims=True)
    pull = c.SPRING_STIFFNESS * (n - given["rest"][:, None]) * d / n
    f = np.zeros_like(x)
    np.add.at(f, edge[:, 0], pull)
    np.add.at(f, edge[:, 1], -pull)
    v = (v + c.SPRING_DT * f) * c.SPRING_DAMPING
    # the length of an edge is off by 1e-7, which the stiffness, four edges and the time step make 2e-7
    close(out[1], v, 0, 1e-6)
    # coordinates are up to the side: one unit in the last place
    return close(out[0], x + c.SPRING_DT * v, 1.2e-7, 1e-6)


def call_inputs(n: int) -> Arrays:
    return {"a": np.arange(n, dtype=np.float32)}


def call_check(given: Arrays, out: Outputs) -> str:
    a = given["a"]
    n = len(a)
    b = 2 * a
    first = b[(np.arange(n) * 7) % n]
    want = first[(np.arange(n) * 5) % n]
    if not any(np.array_equal(out[0], w) for w in (want, a + 1)):  # the trivial call of the peer adds one
        raise WrongResultError("wrong permutation")
    return "exact"


def batch_inputs(count: int) -> Arrays:
    return {"x": np.random.default_rng(0).uniform(-3, 3, (count, c.SMALL)).astype(np.float32)}


def batch_check(given: Arrays, out: Outputs) -> str:
    x = given["x"].astype(np.float64)
    a = np.sin(x)
    b = np.roll(a, -1, 1) + np.roll(a, 1, 1) - 2 * a
    return close(out[0], x + 0.1 * (np.roll(b, -1, 1) - np.roll(b, 1, 1)), 1e-6, 1e-6)


PROGRAMS = (
    Program(
        "lorenz",
        (1 << 14, 1 << 16, 1 << 18),
        1 << 16,
        "lanes x 1000 steps",
        lorenz_inputs,
        lorenz_check,
        {"drjit": 1.0, "jax": 4.5, "quadrants": 20.0},
        ("jax-stacked", "jax-one-kernel", "numba"),
    ),
    Program(
        "mandelbrot",
        (512, 1024, 2048),
        1024,
        "pixels a side, at most 1000",
        mandelbrot_inputs,
        mandelbrot_check,
        {"jax": 10.0, "quadrants": 4.0},
        ("jax-one-kernel",),
    ),
    Program(
        "kepler",
        (1 << 16, 1 << 18, 1 << 20),
        1 << 18,
        "lanes",
        kepler_inputs,
        kepler_check,
        {"jax": 10.0, "quadrants": 4.0},
        ("jax-one-kernel",),
    ),
    Program(
        "ragged",
        (1 << 16, 1 << 18, 1 << 20),
        1 << 18,
        "rows, mean 16",
        ragged_inputs,
        ragged_check,
        {"jax": 10.0, "quadrants": 2.0},
        ("jax-one-kernel",),
    ),
    Program(
        "nearest",
        (25_000, 100_000, 400_000),
        100_000,
        "queries x 4096 points",
        nearest_inputs,
        nearest_check,
        {"jax": 10.0, "numba": 1.5},
    ),
    Program(
        "sin",
        (1_000_000, 10_000_000, 40_000_000),
        10_000_000,
        "f32 in place",
        stream_inputs,
        _stream_check(np.sin),
        {"jax": 2.0},
    ),
    Program(
        "exp",
        (1_000_000, 10_000_000, 40_000_000),
        10_000_000,
        "f32 in place",
        stream_inputs,
        _stream_check(np.exp),
        {"jax": 1.0},
    ),
    Program(
        "sum",
        (1 << 20, 1 << 24, 1 << 26),
        1 << 24,
        "f32 to one",
        stream_inputs,
        sum_check,
        {"jax": 0.9},
        ("numba", "quadrants"),
    ),
    Program(
        "histogram",
        (1 << 18, 1 << 22, 1 << 24),
        1 << 22,
        f"keys, {c.HISTOGRAM_BINS} bins",
        histogram_inputs,
        histogram_check,
        {"jax": 4.0, "numba": 1.0, "quadrants": 4.0},
    ),
    Program(
        "chain",
        (1 << 20, 1 << 24, 1 << 26),
        1 << 24,
        "f32, eight loops",
        stream_inputs,
        chain_check,
        {"quadrants": 5.0, "jax": 1.0},
    ),
    Program(
        "springs",
        (128, 512, 1024),
        512,
        "points a side, edges between neighbours",
        springs_inputs,
        springs_check,
        {},
        ("quadrants", "jax"),
    ),
    Program(
        "call",
        (1024,),
        1024,
        "floats, three tasks; the peer adds one",
        call_inputs,
        call_check,
        {"jax": 1 / 1.3},
    ),
    Program(
        "batch",
        (256, 1024, 4096),
        1024,
        f"problems of {c.SMALL}, three tasks, `jax.vmap`",
        batch_inputs,
        batch_check,
        {"loop by hand": 0.8},
    ),
)
BY_NAME = {p.name: p for p in PROGRAMS}
