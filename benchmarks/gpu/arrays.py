"""Arrays inside of lanes: products, factorisations, filters, networks, robots, beside `jax.vmap` of the same lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks import robots as steps_of_robots
from benchmarks.array_lanes import cholesky_solve, kalman, predictions, product
from benchmarks.gpu.row import Ask, Row
from benchmarks.programs import close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.gpu.bench import Bench

SIDES = (4, 8, 16, 27, 32, 64)
ELEMENTS = 1 << 25
"""Elements of one argument of all lanes."""
WORLDS = 8192


def network(w1: Any, w2: Any, w3: Any, x: Any) -> Any:
    """Three layers whose weights all lanes share."""
    return jnp.sum(w3 @ jnp.tanh(w2 @ jnp.tanh(w1 @ x)))


def _matrices(rng: np.random.Generator, count: int, n: int) -> Any:
    return jnp.asarray((rng.normal(size=(count, n, n)) / np.sqrt(n)).astype(np.float32))


def _definite(rng: np.random.Generator, count: int, n: int) -> Any:
    a = np.asarray(_matrices(rng, count, n))
    return jnp.asarray(a @ a.transpose(0, 2, 1) + np.eye(n, dtype=np.float32))


def _vectors(rng: np.random.Generator, count: int, n: int) -> Any:
    return jnp.asarray(rng.normal(size=(count, n)).astype(np.float32))


def _lanes(bench: Bench, n: int, share: int = 1) -> int:
    return bench.size(min(ELEMENTS // (n * n), 1 << 18) // share, 3)


def beside(
    bench: Bench, name: str, f: Callable[..., Any], args: Sequence[Any], asked: tuple[float, float], axes: Any = 0
) -> Iterator[Row]:
    """A row for the value and one for the gradient by all arguments that are arrays of weights or of lanes."""
    numbers = tuple(range(len(args))) if axes == 0 else tuple(k for k, axis in enumerate(axes) if axis is None)

    def gradient(vmap: Any) -> Any:
        return jax.grad(lambda *a: sum(jnp.sum(x * x) for x in jax.tree.leaves(vmap(f, axes)(*a))), argnums=numbers)

    for what, made, least in zip(("", ": gradient"), (lambda vmap: vmap(f, axes), gradient), asked, strict=True):
        with jax.default_matmul_precision("highest"):
            ours, theirs = (jax.jit(made(vmap)) for vmap in (qd.vmap, jax.vmap))
            for got, want in zip(jax.tree.leaves(ours(*args)), jax.tree.leaves(theirs(*args)), strict=True):
                scale = float(jnp.abs(want).max())
                close(np.asarray(got), np.asarray(want), 0.0, 1e-3 * scale)  # the condition is at most some 100
            mine, peers = bench.times(lambda: ours(*args), lambda: theirs(*args))  # noqa: B023 - run at once
        yield Row(f"{name}{what}", mine.ms, "ms", "jax.vmap", peers.ms, Ask.FASTER, least, mine.words)


def algebra(bench: Bench) -> Iterator[Row]:
    """Products, Cholesky factors with a solve, predictions, of matrices in lanes that fill the device."""
    rng = np.random.default_rng(0)
    for n in bench_sides(bench):
        count, fewer = _lanes(bench, n), _lanes(bench, n, 8)
        yield from beside(bench, f"product {n}", product, [_matrices(rng, count, n) for _ in range(2)], (1.0, 1.0))
        yield from beside(bench, f"Cholesky {n}", jnp.linalg.cholesky, [_definite(rng, count, n)], (1.0, 1.0))
        args = [_definite(rng, count, n), _vectors(rng, count, n)]
        yield from beside(bench, f"Cholesky and solve {n}", cholesky_solve, args, (2.0, 1.0))
        args = [_matrices(rng, fewer, n), _definite(rng, fewer, n)]
        yield from beside(bench, f"20 predictions {n}", predictions, args, (1.5, 1.5))


def bench_sides(bench: Bench) -> tuple[int, ...]:
    """Returns the sides of matrices to run: two of them in a small run."""
    return (4, 20) if bench.small else SIDES


def filters(bench: Bench) -> Iterator[Row]:
    """Kalman filters of dimension 12 and 24."""
    rng = np.random.default_rng(1)
    for n in (12, 24):
        count = _lanes(bench, n, 8)
        args = [0.5 * _matrices(rng, count, n), _definite(rng, count, n), _vectors(rng, count, n)]
        yield from beside(bench, f"Kalman filter {n}", kalman, args, (1.0, 1.0))


def networks(bench: Bench) -> Iterator[Row]:
    """Networks of width 32 and 64 on 65,536 inputs, and the gradient by their weights."""
    rng = np.random.default_rng(2)
    for width in (32, 64):
        weights = [_matrices(rng, 1, width)[0] for _ in range(3)]
        args = [*weights, _vectors(rng, bench.size(1 << 16, 3), width)]
        yield from beside(bench, f"network {width}", network, args, (1.0, 1.0), (None, None, None, 0))


def robots(bench: Bench) -> Iterator[Row]:
    """Five steps of robots of MuJoCo in JAX (extra `fields`), and what their first call takes."""
    if not steps_of_robots.are_installed():
        yield Row("robots", None, note="needs mujoco-mjx", failed=True)
        return
    rng = np.random.default_rng(3)
    for name, steps, freedoms in steps_of_robots.robots():
        worlds = bench.size(WORLDS, 2)
        velocities = jnp.asarray(0.1 * rng.normal(size=(worlds, freedoms)).astype(np.float32))
        ours, theirs = jax.jit(qd.vmap(steps)), jax.jit(jax.vmap(steps))
        for got, want in zip(ours(velocities), theirs(velocities), strict=True):
            close(np.asarray(got), np.asarray(want), 0.0, 1e-2, 0.99)  # contacts decide by the last digits
        mine, peers = bench.times(lambda: ours(velocities), lambda: theirs(velocities))  # noqa: B023 - run at once
        note = f"{5e3 * worlds / mine.ms:.3g} steps a second"
        yield Row(f"MJX {name}, 5 steps", mine.ms, "ms", "jax.vmap", peers.ms, Ask.FASTER, 1.2, note)
