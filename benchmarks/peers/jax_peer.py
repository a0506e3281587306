"""The lane functions under `jax.jit(jax.vmap(...))`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import lanes
from benchmarks.constants import HISTOGRAM_BINS, SPRING_DAMPING, SPRING_DT, SPRING_STIFFNESS
from benchmarks.peers import Run


def _arrays(out: Any) -> tuple[Any, ...]:
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(out))


def _mapped(function: Any, *args: Any) -> Run:
    compiled = jax.jit(function)
    given = [jnp.asarray(a) for a in args]
    return Run(lambda _: jax.block_until_ready(compiled(*given)), _arrays)


def lorenz(rho: Any) -> Run:
    return _mapped(jax.vmap(lanes.lorenz), rho)


def lorenz_stacked(rho: Any) -> Run:
    return _mapped(jax.vmap(lanes.lorenz_stacked), rho)


def mandelbrot(cx: Any, cy: Any) -> Run:
    return _mapped(jax.vmap(jax.vmap(lanes.mandelbrot, (0, None)), (None, 0)), cx, cy)


def kepler(e: Any, mean: Any) -> Run:
    return _mapped(jax.vmap(lanes.kepler), e, mean)


def ragged(ptr: Any, col: Any, w: Any, x: Any) -> Run:
    rows = jax.vmap(lanes.ragged_row, (0, 0, None, None, None))
    return _mapped(lambda ptr, col, w, x: rows(ptr[:-1], ptr[1:], col, w, x), ptr, col, w, x)


def nearest(queries: Any, points: Any) -> Run:
    return _mapped(jax.vmap(lanes.nearest, (0, None)), queries, points)


def _stream(function: Any, x: Any) -> Run:
    compiled = jax.jit(function, donate_argnums=0)
    return Run(
        lambda fresh: jax.block_until_ready(compiled(fresh)),
        _arrays,
        prepare=lambda: jax.block_until_ready(jnp.array(x)),
    )


def sin(x: Any) -> Run:
    return _stream(jnp.sin, x)


def exp(x: Any) -> Run:
    return _stream(jnp.exp, x)


def total(x: Any) -> Run:
    return _mapped(jnp.sum, x)


def counts(k: Any) -> Any:
    return jnp.zeros(HISTOGRAM_BINS, jnp.int32).at[k].add(1)


def histogram(k: Any) -> Run:
    return _mapped(counts, k)


def eight_operations(a: Any) -> Any:
    """The array form of eight loops."""
    b = a * 2
    c = b + a
    b = c * c + 1
    c = jnp.sqrt(b)
    b = c + a * 0.5
    c = b * b
    b = c - a
    return b * 0.25


def chain(x: Any) -> Run:
    return _mapped(eight_operations, x)


def springs(x: Any, v: Any, edge: Any, rest: Any) -> Run:
    def array_form(x: Any, v: Any, edge: Any, rest: Any) -> Any:
        a, b = edge[:, 0], edge[:, 1]
        d = x[b] - x[a]
        n = jnp.linalg.norm(d, axis=1, keepdims=True) + 1e-9
        pull = SPRING_STIFFNESS * (n - rest[:, None]) * d / n
        f = jnp.zeros_like(x).at[a].add(pull).at[b].add(-pull)
        v = (v + SPRING_DT * f) * SPRING_DAMPING
        return x + SPRING_DT * v, v

    return _mapped(array_form, x, v, edge, rest)


def call(a: Any, calls: int = 2000) -> Run:
    compiled = jax.jit(lambda a: a + 1)
    given = jnp.asarray(a)

    def repeat(_: Any) -> Any:
        out = None
        for _ in range(calls):
            out = compiled(given)
        return jax.block_until_ready(out)

    return Run(repeat, _arrays, calls=calls)


PROGRAMS = {
    f.__name__: f
    for f in (lorenz, mandelbrot, kepler, ragged, nearest, sin, exp, histogram, chain, springs, call)
}
PROGRAMS["sum"] = total
STACKED = {"lorenz": lorenz_stacked}
