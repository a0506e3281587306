"""Arrays of lanes on a CPU beside `jax.vmap`, value and gradient: `python -m benchmarks.dense`, or in `make bench`.

Both run under `jax.jit` at the highest precision, in one process and in turn; each row is printed at once.
`QD_CPU_TARGET=avx2 XLA_FLAGS=--xla_cpu_max_isa=AVX2` measures both with vectors of 256 bits.
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
from benchmarks.array_lanes import kalman, network_in_loop, neural_ode, product
from benchmarks.programs import close
from benchmarks.robots import are_installed, robots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

ELEMENTS = 1 << 20
"""Elements of one argument of all lanes."""
WORLDS = 64
"""Robots that MuJoCo in JAX steps, where `mujoco-mjx` is installed."""
MOST_STEPS = 30
"""The most steps that a lane of the neural ordinary differential equation takes."""
SECONDS = 1.5
"""Ours and JAX's take turns at least so long."""


@dataclass(frozen=True)
class Report:
    """The rows as text, and whether each ran and was right."""

    text: str
    ran: bool


@dataclass(frozen=True)
class Work:
    """A function of a lane, its arguments, and the largest ratios of our time to that of `jax.vmap`."""

    name: str
    f: Callable[..., Any]
    args: Sequence[Any]
    most: float
    most_gradient: float | None
    """None: the gradient is not measured."""
    axes: Any = 0
    masked: Callable[..., Any] | None = None
    """What JAX differentiates in place of `f`, whose `while` it has no reverse mode of."""


def network(*args: Any) -> Any:
    """Three layers, with weights and biases that all lanes share."""
    *layers, x = args
    for k in range(0, len(layers), 2):
        x = layers[k] @ (jnp.tanh(x) if k else x) + layers[k + 1]
    return jnp.sum(x)


def works() -> Iterator[Work]:
    rng = np.random.default_rng(0)

    def matrices(count: int, n: int) -> Any:
        return jnp.asarray((rng.normal(size=(count, n, n)) / np.sqrt(n)).astype(np.float32))

    def definite(count: int, n: int) -> Any:
        a = matrices(count, n)
        return a @ a.swapaxes(1, 2) + jnp.eye(n)

    for n in (8, 12, 16, 24, 32, 64):
        count = ELEMENTS // (n * n)
        yield Work(f"product {n}", product, [matrices(count, n) for _ in range(2)], 0.5 if n <= 16 else 1.0, 1.0)
    for n in (8, 16, 32, 64):
        yield Work(f"Cholesky {n}", jnp.linalg.cholesky, [definite(ELEMENTS // (n * n), n)], 0.8, 1.0)
    for n in (12, 24):
        count = ELEMENTS // (4 * n * n)
        seen = jnp.asarray(rng.normal(size=(count, n)).astype(np.float32))
        yield Work(f"Kalman filter {n}", kalman, [0.5 * matrices(count, n), definite(count, n), seen], 0.4, 1.0)
    sides = (4, 64, 64, 4)
    layers = [
        jnp.asarray(rng.normal(size=size).astype(np.float32) / 8)
        for m, n in zip(sides[1:], sides, strict=False)
        for size in ((m, n), (m,))
    ]
    inputs = jnp.asarray(rng.normal(size=(4096, 4)).astype(np.float32))
    yield Work("network 4-64-64-4", network, [*layers, inputs], 1.0, 1.0, (*[None] * len(layers), 0))
    yield from loops(rng)
    for name, steps, freedoms in robots() if are_installed() else ():
        velocities = jnp.asarray(0.1 * rng.normal(size=(WORLDS, freedoms)).astype(np.float32))
        yield Work(f"MJX {name}", steps, [velocities], 0.7, None)


def loops(rng: np.random.Generator) -> Iterator[Work]:
    """Yields lanes that leave a loop at different times."""

    def array(*shape: int) -> Any:
        return jnp.asarray((rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32))

    lanes, width = 4096, 32
    weights = [a for m, n in ((width, 4), (width, width), (4, width)) for a in (array(m, n), 0.1 * array(m))]
    starts, shared = 4 * array(lanes, 4), (*[None] * 6, 0, 0)
    masked = partial(neural_ode, most=MOST_STEPS)
    for name, low, high in (("", -5.0, -2.0), (", alike", -4.0, -4.0)):
        tolerances = jnp.asarray(10 ** rng.uniform(low, high, lanes), jnp.float32)
        args = [*weights, starts, tolerances]
        yield Work(f"neural ODE {width}{name}", neural_ode, args, 0.5, 0.5, shared, masked)
    limits = jnp.asarray(rng.integers(5, 50, lanes).astype(np.int32))
    args, masked = [1.2 * array(width, width), array(lanes, width), limits], partial(network_in_loop, most=50)
    yield Work(f"network in a loop {width}", network_in_loop, args, 0.5, 0.5, (None, 0, 0), masked)


def row(work: Work, *, gradient: bool) -> tuple[str, bool]:
    """Returns a line about the value or the gradient of a work, and whether ours was right."""
    axes, args = work.axes, work.args
    numbers = tuple(range(len(args))) if axes == 0 else tuple(k for k, axis in enumerate(axes) if axis is None)

    def made(vmap: Any) -> Any:
        lane = work.masked if gradient and vmap is jax.vmap and work.masked is not None else work.f
        mapped = vmap(lane, axes)
        if not gradient:
            return jax.jit(mapped)
        return jax.jit(jax.grad(lambda *a: jnp.sum(jnp.square(mapped(*a))), argnums=numbers))

    functions = [made(jax.vmap), made(qd.vmap)]
    results: list[Any] = []
    first: list[float] = []
    times: list[list[float]] = [[], []]
    for f in functions:
        began = time.perf_counter()
        results.append(jax.block_until_ready(f(*args)))
        first.append(time.perf_counter() - began)
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS or len(times[0]) < 5:
        for f, taken in zip(functions, times, strict=True):
            start = time.perf_counter()
            jax.block_until_ready(f(*args))
            taken.append(time.perf_counter() - start)
    try:
        for got, want in zip(jax.tree.leaves(results[1]), jax.tree.leaves(results[0]), strict=True):
            close(np.asarray(got), np.asarray(want), 0.0, 1e-3 * float(jnp.abs(want).max()))  # conditions of some 100
        note, right = "", True
    except Exception as error:
        note, right = f"WRONG: {error}", False
    theirs, ours = (1e3 * min(taken) for taken in times)
    most = work.most_gradient if gradient and work.most_gradient is not None else work.most
    words = note or ("reached" if ours <= most * theirs else "NOT reached")
    name = f"{work.name}{': gradient' if gradient else ''}"
    return (
        f"{name:32}jax.vmap {theirs:9.3f} ms   qdtrace {ours:9.3f} ms   ratio {ours / theirs:5.2f}, at most {most}: "
        f"{words}   first {first[0]:.1f}, {first[1]:.1f} s"
    ), right


def measure(root: Path | None = None, names: Sequence[str] = ()) -> Report:
    """Runs all works, or those with one of the names in theirs; prints each row at once."""
    del root
    good = True
    lines: list[str] = []
    with jax.default_matmul_precision("highest"):
        for work in works():
            if names and not any(name in work.name for name in names):
                continue
            for gradient in (False, True)[: 1 if work.most_gradient is None else 2]:
                line, right = row(work, gradient=gradient)
                good &= right
                lines.append(line)
                print(line, flush=True)
    return Report(f"arrays of lanes: {len(lines)} rows above", good)


if __name__ == "__main__":
    sys.exit(0 if measure(names=sys.argv[1:]).ran else 1)
