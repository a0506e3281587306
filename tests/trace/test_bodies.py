# ruff: noqa: B023
"""Bodies of real programs: they trace, and no diagnosis stands in their way."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.trace.trace import trace_function

RNG = np.random.default_rng(1)


def f32(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def material_points(x, v, c):
    """Particles to grid and back with quadratic weights; the inner 3 x 3 stencil is unrolled by Python."""
    n, dt = 16, 1e-3
    momentum = qd.zeros((n, n, 2))
    mass = qd.zeros((n, n))
    for p in qd.range(x.shape[0]):
        base = (x[p] * n - 0.5).astype(jnp.int32)
        fx = x[p] * n - base
        weights = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]
        for i in range(3):
            for j in range(3):
                offset = jnp.array([i, j])
                weight = weights[i][0] * weights[j][1]
                cell = base + offset
                momentum[cell[0], cell[1]] += weight * (v[p] + c[p] @ ((offset - fx) / n))
                mass[cell[0], cell[1]] += weight
    for i, j in qd.ndrange(n, n):
        with qd.when(mass[i, j] > 0):
            g = momentum[i, j] / mass[i, j]
            g = g.at[1].add(-9.8 * dt)
            g = jnp.where(jnp.array([i < 3, j < 3]) & (g < 0), 0.0, g)
            momentum[i, j] = g
    for p in qd.range(x.shape[0]):
        base = (x[p] * n - 0.5).astype(int)
        fx = x[p] * n - base
        weights = [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1.0) ** 2, 0.5 * (fx - 0.5) ** 2]
        velocity = jnp.zeros(2)
        for i in range(3):
            for j in range(3):
                weight = weights[i][0] * weights[j][1]
                velocity += weight * momentum[base[0] + i, base[1] + j]
        v[p] = velocity
        x[p] = x[p] + dt * velocity
    return x, v


def springs(x, v, edge, rest):
    force = qd.zeros_like(x)
    for e in qd.range(edge.shape[0]):
        a, b = edge[e, 0], edge[e, 1]
        d = x[b] - x[a]
        length = jnp.linalg.norm(d)
        pull = 100.0 * (length - rest[e]) * d / jnp.maximum(length, 1e-6)
        force[a] += pull
        force[b] -= pull
    for i in qd.range(x.shape[0]):
        v[i] += 1e-3 * force[i]
        x[i] += 1e-3 * v[i]
    return x, v


def gravity(x):
    out = qd.empty(x.shape)
    for i in qd.range(x.shape[0]):
        total = qd.local(jnp.zeros(3))
        here = x[i]
        for j in qd.range(x.shape[0]):
            d = x[j] - here
            total += d * lax.rsqrt(d @ d + 1e-3) ** 3
        out[i] = total
    return out


def sparse_rows(start, column, value, x):
    y = qd.zeros(start.shape[0] - 1)
    for i in qd.range(y.shape[0]):
        s = qd.local(0.0)
        for k in qd.range(start[i], start[i + 1]):
            s += value[k] * x[column[k]]
        y[i] = s
    return y


def ray_march(height):
    image = qd.zeros((4, 6))

    def distance(p):
        return jnp.minimum(jnp.linalg.norm(p) - 0.5, p[1] + height)

    for i, j in qd.ndrange(4, 6):
        origin = jnp.array([0.0, 0.0, -2.0])
        ray = jnp.stack([i / 4 - 0.5, j / 6 - 0.5, 1.0])
        t = qd.local(0.0)
        for _ in qd.range(64):
            d = distance(origin + t * ray)
            qd.break_if((d < 1e-3) | (t > 5.0))
            t += d
        normal = jax.grad(distance)(origin + t * ray)
        image[i, j] = jnp.where(t < 5.0, jnp.maximum(0.0, normal @ jnp.array([0.5, 0.5, -0.7])), 0.0)
    return image


def adaptive_steps(y0):
    out = qd.zeros_like(y0)

    def field(y):
        return jnp.array([1.1 * y[0] - 0.4 * y[0] * y[1], -0.4 * y[1] + 0.1 * y[0] * y[1]])

    for i in qd.range(y0.shape[0]):
        t, h = qd.local(0.0), qd.local(0.1)
        y = qd.local(y0[i])
        for _ in qd.while_(lambda: t < 2.0):
            step = jnp.minimum(h.value, 2.0 - t)
            k1 = field(y.value)
            k2 = field(y + step * k1)
            error = jnp.max(jnp.abs(k1 - k2)) * step
            with qd.when(error < 1e-3):
                t += step
                y += 0.5 * step * (k1 + k2)
            h.value = step * jnp.clip(0.9 * lax.rsqrt(error + 1e-9) * 0.03, 0.2, 5.0)
        out[i] = y
    return out


def random_walk(seed):
    out = qd.zeros((4, 3))
    key = jax.random.key(seed)
    for i in qd.range(4):
        k1, k2 = jax.random.split(jax.random.fold_in(key, i))
        out[i] = jax.random.uniform(k1, (3,)) + jax.random.normal(k2)
    return out


def sorted_neighbours(points):
    best = qd.zeros((points.shape[0], 3))
    for i in qd.range(points.shape[0]):
        near = qd.local(jnp.full(3, jnp.inf))
        for j in qd.range(points.shape[0]):
            d = jnp.sum((points[i] - points[j]) ** 2)
            with qd.when(d < near[2]):
                k = qd.local(2)
                for _ in qd.while_(lambda: (k > 0) & (near[jnp.maximum(k - 1, 0)] > d)):
                    near[k] = near[k - 1]
                    k -= 1
                near[k] = d
        best[i] = near
    return best


def linear_algebra(a, b):
    y = qd.zeros(a.shape[0])
    for i in qd.range(a.shape[0]):
        m = a[i]
        s = m @ m.T + jnp.eye(3)
        y[i] = jnp.linalg.solve(m, b[i])[0] + jnp.linalg.cholesky(s)[2, 1] + jnp.linalg.eigh(s)[0][0]
        y[i] += jnp.sort(b[i])[1] + jnp.median(b[i]) + b[i][jnp.argmax(b[i])]
    return y


def switches(x, k):
    for i in qd.range(x.shape[0]):
        a = x[i]
        x[i] = lax.switch(k[i], [jnp.sin, jax.nn.gelu, lambda t: jnp.hypot(t, 1.0)], a)
        x[i] += lax.cond(a > 0, lambda: a, lambda: -a)
    return x


EDGES = np.array([[0, 1], [1, 2]], np.int32)
BODIES = [
    (material_points, (f32(8, 2) * 0.1 + 0.5, f32(8, 2), f32(8, 2, 2)), 3),
    (springs, (f32(3, 3), f32(3, 3), EDGES, np.ones(2, np.float32)), 2),
    (gravity, (f32(5, 3),), 1),
    (sparse_rows, (np.array([0, 2, 3], np.int32), np.array([0, 1, 2], np.int32), f32(3), f32(3)), 1),
    (ray_march, (np.float32(0.5),), 1),
    (adaptive_steps, (abs(f32(3, 2)),), 1),
    (random_walk, (np.uint32(7),), 1),
    (sorted_neighbours, (f32(6, 2),), 1),
    (linear_algebra, (f32(2, 3, 3), f32(2, 3)), 1),
    (switches, (f32(5), np.array([0, 1, 2, 1, 0], np.int32)), 1),
]


@pytest.mark.parametrize(("function", "args", "tasks"), BODIES, ids=lambda v: getattr(v, "__name__", ""))
def test_traces(function, args, tasks) -> None:
    for _ in range(2):
        root = trace_function(function, args).root
        assert sum(getattr(item, "kind", "") == "for" for item in root.items) == tasks
