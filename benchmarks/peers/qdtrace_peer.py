"""The programs written for qdtrace."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks import lanes
from benchmarks.constants import HISTOGRAM_BINS, SPRING_DAMPING, SPRING_DT, SPRING_STIFFNESS
from benchmarks.peers import Run


def _arrays(out: Any) -> tuple[Any, ...]:
    return tuple(np.asarray(leaf) for leaf in jax.tree.leaves(out))


def _run(compiled: Any, *args: Any) -> Run:
    given = [jnp.asarray(a) for a in args]
    return Run(lambda _: jax.block_until_ready(compiled(*given)), _arrays)


def lorenz(rho: Any) -> Run:
    return _run(qd.vmap(lanes.lorenz), rho)


@qd.jit
def mandelbrot_image(cx: Any, cy: Any) -> Any:
    out = qd.empty((cy.shape[0], cx.shape[0]), jnp.int32)
    for a, b in qd.ndrange(cy.shape[0], cx.shape[0]):
        out[a, b] = lanes.mandelbrot(cx[b], cy[a])
    return out


def mandelbrot(cx: Any, cy: Any) -> Run:
    return _run(mandelbrot_image, cx, cy)


def kepler(e: Any, mean: Any) -> Run:
    return _run(qd.vmap(lanes.kepler), e, mean)


@qd.jit
def ragged_rows(ptr: Any, col: Any, w: Any, x: Any) -> Any:
    out = qd.empty(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        acc = qd.local(0.5)
        for j in qd.range(ptr[i], ptr[i + 1]):
            acc.value = jnp.sin(acc.value) + w[j] * x[col[j]]
        out[i] = acc.value
    return out


def ragged(ptr: Any, col: Any, w: Any, x: Any) -> Run:
    return _run(ragged_rows, ptr, col, w, x)


@qd.jit
def nearest_points(queries: Any, points: Any) -> Any:
    count = lanes.NEIGHBOURS
    distances = qd.empty((queries.shape[0], count), jnp.float32)
    indices = qd.empty((queries.shape[0], count), jnp.int32)
    for i in qd.range(queries.shape[0]):
        best = qd.local(jnp.full((count,), jnp.inf, jnp.float32))
        who = qd.local(jnp.full((count,), -1, jnp.int32))
        at = queries[i]
        for j in qd.range(points.shape[0]):
            dx, dy, dz = points[j, 0] - at[0], points[j, 1] - at[1], points[j, 2] - at[2]
            d = dx * dx + dy * dy + dz * dz
            with qd.when(d < best[count - 1]):
                k = qd.local(count - 1)
                for _ in qd.while_(lambda: (k.value > 0) & (best[jnp.maximum(k.value - 1, 0)] > d)):  # noqa: B023
                    best[k.value] = best[k.value - 1]
                    who[k.value] = who[k.value - 1]
                    k.value = k.value - 1
                best[k.value] = d
                who[k.value] = j
        distances[i] = best[...]
        indices[i] = who[...]
    return distances, indices


def nearest(queries: Any, points: Any) -> Run:
    return _run(nearest_points, queries, points)


def _stream(function: Any, x: Any) -> Run:
    def in_place(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = function(x[i])
        return x

    compiled = qd.jit(in_place, donate_argnums=0)
    return Run(
        lambda fresh: jax.block_until_ready(compiled(fresh)),
        _arrays,
        prepare=lambda: jax.block_until_ready(jnp.array(x)),
    )


def sin(x: Any) -> Run:
    return _stream(jnp.sin, x)


def exp(x: Any) -> Run:
    return _stream(jnp.exp, x)


@qd.jit
def sum_of_all(x: Any) -> Any:
    total = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        total[...] += x[i]
    return total


def total(x: Any) -> Run:
    return _run(sum_of_all, x)


@qd.jit
def counts(k: Any) -> Any:
    out = qd.zeros((HISTOGRAM_BINS,), jnp.int32)
    for i in qd.range(k.shape[0]):
        out[k[i]] += 1
    return out


def histogram(k: Any) -> Run:
    return _run(counts, k)


def _described(compiled: Any, *args: Any) -> Run:
    def about() -> str:
        lowered = compiled.lower(*args)
        return f"tasks left: {len(lowered.tasks)}; counted from the graph: {lowered.traffic()}"

    run = _run(compiled, *args)
    run.about = about
    return run


@qd.jit
def eight_loops(x: Any) -> Any:
    n = x.shape[0]
    made = [qd.empty_like(x) for _ in range(8)]
    for i in qd.range(n):
        made[0][i] = x[i] * 2.0
    for i in qd.range(n):
        made[1][i] = made[0][i] + x[i]
    for i in qd.range(n):
        made[2][i] = made[1][i] * made[1][i] + 1.0
    for i in qd.range(n):
        made[3][i] = jnp.sqrt(made[2][i])
    for i in qd.range(n):
        made[4][i] = made[3][i] + x[i] * 0.5
    for i in qd.range(n):
        made[5][i] = made[4][i] * made[4][i]
    for i in qd.range(n):
        made[6][i] = made[5][i] - x[i]
    for i in qd.range(n):
        made[7][i] = made[6][i] * 0.25
    return made[7]


def chain(x: Any) -> Run:
    return _described(eight_loops, x)


@qd.jit
def spring_step(x: Any, v: Any, edge: Any, rest: Any, dt: Any) -> Any:
    f = qd.zeros(x.shape, x.dtype)
    for e in qd.range(edge.shape[0]):
        a, b = edge[e, 0], edge[e, 1]
        d = x[b] - x[a]
        n = jnp.linalg.norm(d) + 1e-9
        pull = SPRING_STIFFNESS * (n - rest[e]) * d / n
        f[a] += pull
        f[b] += -pull
    for i in qd.range(x.shape[0]):
        v[i] = (v[i] + dt * f[i]) * SPRING_DAMPING
    for i in qd.range(x.shape[0]):
        x[i] = x[i] + dt * v[i]
    return x, v


def springs(x: Any, v: Any, edge: Any, rest: Any) -> Run:
    return _described(spring_step, x, v, edge, rest, np.float32(SPRING_DT))


@qd.jit
def three_tasks(a: Any) -> Any:
    n = a.shape[0]
    b, first = qd.empty_like(a), qd.empty_like(a)
    out = qd.empty_like(a)
    for i in qd.range(n):
        b[i] = a[i] * 2.0
    for i in qd.range(n):
        first[i] = b[(i * 7) % n]
    for i in qd.range(n):
        out[i] = first[(i * 5) % n]
    return out


def call(a: Any, calls: int = 2000) -> Run:
    given = jnp.asarray(a)

    def repeat(_: Any) -> Any:
        out = None
        for _ in range(calls):
            out = three_tasks(given)
        return jax.block_until_ready(out)

    return Run(repeat, _arrays, calls=calls)


def _smoothed(x: Any) -> Any:
    """Three tasks on one small problem."""
    n = x.shape[0]
    a, b, out = qd.empty_like(x), qd.empty_like(x), qd.empty_like(x)
    for i in qd.range(n):
        a[i] = jnp.sin(x[i])
    for i in qd.range(n):
        b[i] = a[(i + 1) % n] + a[(i + n - 1) % n] - 2.0 * a[i]
    for i in qd.range(n):
        out[i] = x[i] + 0.1 * (b[(i + 1) % n] - b[(i + n - 1) % n])
    return out


def _smoothed_batch(x: Any) -> Any:
    """The same with the loop over problems written by hand."""
    count, n = x.shape
    a, b, out = qd.empty_like(x), qd.empty_like(x), qd.empty_like(x)
    for k, i in qd.ndrange(count, n):
        a[k, i] = jnp.sin(x[k, i])
    for k, i in qd.ndrange(count, n):
        b[k, i] = a[k, (i + 1) % n] + a[k, (i + n - 1) % n] - 2.0 * a[k, i]
    for k, i in qd.ndrange(count, n):
        out[k, i] = x[k, i] + 0.1 * (b[k, (i + 1) % n] - b[k, (i + n - 1) % n])
    return out


def batch(x: Any) -> Run:
    return _run(jax.jit(jax.vmap(qd.jit(_smoothed))), x)


def batch_by_hand(x: Any) -> Run:
    return _run(qd.jit(_smoothed_batch), x)


PROGRAMS = {
    f.__name__: f
    for f in (lorenz, mandelbrot, kepler, ragged, nearest, sin, exp, histogram, chain, springs, call, batch)
}
PROGRAMS["sum"] = total
BY_HAND = {"batch": batch_by_hand}
