"""Kernels in solvers, each in one `jax.jit`: Newton steps with conjugate gradients, a multigrid cycle, its gradient."""

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.sparse.linalg import cg

import qdtrace as qd


@pytest.fixture(autouse=True)
def _double() -> Any:
    with jax.enable_x64(True):
        yield


@qd.jit
def smoothed(u, f, sweeps=2):
    """Gauss-Seidel sweeps of -u'' = f on a square's inner points, red ones first, in place."""
    n = u.shape[0]
    square = 1.0 / (n - 1) ** 2
    for _ in range(sweeps):
        for colour in range(2):
            for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
                with qd.when((i + j) % 2 == colour):
                    u[i, j] = 0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] + square * f[i, j])
    return u


@qd.jit
def residual(u, f):
    n = u.shape[0]
    out = qd.zeros(u.shape, u.dtype)
    for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
        out[i, j] = f[i, j] + (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4 * u[i, j]) * (n - 1) ** 2
    return out


@qd.jit
def restricted(r):
    """Full weighting onto every other point."""
    n = (r.shape[0] + 1) // 2
    out = qd.zeros((n, n), r.dtype)
    for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
        total = qd.local(jnp.zeros((), r.dtype))
        for a in range(-1, 2):
            for b in range(-1, 2):
                total.value += r[2 * i + a, 2 * j + b] * (2 - abs(a)) * (2 - abs(b)) / 16
        out[i, j] = total.value
    return out


@qd.jit
def corrected(u, e):
    """Adds a correction of every other point, in between the mean of its neighbours."""
    n = u.shape[0]
    for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
        a, b = (i + 1) // 2, (j + 1) // 2
        u[i, j] += 0.25 * (e[i // 2, j // 2] + e[a, j // 2] + e[i // 2, b] + e[a, b])
    return u


def cycle(u, f):
    u = smoothed(u, f)
    if u.shape[0] > 3:
        coarse = restricted(residual(u, f))
        u = corrected(u, cycle(jnp.zeros_like(coarse), coarse))
    return smoothed(u, f)


def by_arrays(u, f):
    """The same cycle by operations on whole arrays."""
    n = u.shape[0]
    places = jnp.add(*jnp.meshgrid(jnp.arange(n), jnp.arange(n), indexing="ij"))
    inside = jnp.zeros((n, n), bool).at[1:-1, 1:-1].set(True)

    def around(u: Any) -> Any:
        return jnp.pad(u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:], 1)

    def smooth(u: Any) -> Any:
        for colour in (0, 1, 0, 1):
            u = jnp.where(inside & (places % 2 == colour), 0.25 * (around(u) + f / (n - 1) ** 2), u)
        return u

    u = smooth(u)
    if n > 3:
        r = jnp.where(inside, f + (around(u) - 4 * u) * (n - 1) ** 2, 0)
        weights = jnp.outer(jnp.array([1, 2, 1.0]), jnp.array([1, 2, 1.0])) / 16
        m = (n + 1) // 2
        coarse = jnp.zeros((m, m)).at[1:-1, 1:-1].set(
            sum(weights[a, b] * r[1 + a : n - 3 + a : 2, 1 + b : n - 3 + b : 2] for a in range(3) for b in range(3))
        )
        e = by_arrays(jnp.zeros_like(coarse), coarse)
        k = jnp.arange(n)
        low, high = k // 2, (k + 1) // 2
        fine = 0.25 * (e[low][:, low] + e[high][:, low] + e[low][:, high] + e[high][:, high])
        u = smooth(jnp.where(inside, u + fine, u))
    else:
        u = smooth(u)
    return u


def test_a_multigrid_cycle_and_its_gradient() -> None:
    n = 9
    x = jnp.linspace(0, 1, n)
    f = jnp.outer(jnp.sin(jnp.pi * x), jnp.sin(2 * jnp.pi * x)) * 5 * jnp.pi**2
    f = f.at[0].set(0).at[-1].set(0).at[:, 0].set(0).at[:, -1].set(0)
    u = jax.jit(lambda f: jax.lax.fori_loop(0, 6, lambda _, u: cycle(u, f), jnp.zeros_like(f)))(f)
    assert float(jnp.abs(residual(u, f)).max()) < 1e-4 * float(jnp.abs(f).max())  # a cycle takes a tenth away

    def twice(one: Any, f: Any) -> Any:
        return one(one(jnp.zeros_like(f), f), f)

    def loss(f: Any) -> Any:
        u = twice(cycle, f)
        return jnp.sum(jnp.cos(u)), u

    # two cycles are linear, and XLA takes four times as long to compile their gradient as their matrix
    matrix = jax.jit(jax.vmap(lambda e: twice(jax.jit(by_arrays), e).ravel()))(jnp.eye(n * n).reshape(-1, n, n))
    got, u = jax.jit(jax.grad(loss, has_aux=True))(f)
    np.testing.assert_allclose(u.ravel(), f.ravel() @ matrix, rtol=0, atol=1e-14)
    np.testing.assert_allclose(got.ravel(), -matrix @ jnp.sin(u.ravel()), rtol=0, atol=1e-16)


@qd.jit
def energy(x, ends, rest):
    """Springs, of a fourth power of their lengths."""
    out = qd.zeros((), x.dtype)
    for k in qd.range(ends.shape[0]):
        d = x[ends[k, 0]] - x[ends[k, 1]]
        out[()] += 0.5 * (jnp.dot(d, d) / rest[k] ** 2 - 1) ** 2
    return out


def test_newton_steps_with_conjugate_gradients() -> None:
    rng = np.random.default_rng(0)
    count = 40
    ends = jnp.asarray([(a, b) for a in range(count) for b in range(a + 1, min(a + 5, count))])
    points = jnp.asarray(rng.normal(size=(count, 3)))
    rest = jnp.linalg.norm(points[ends[:, 0]] - points[ends[:, 1]], axis=1)
    x = points + 0.02 * jnp.asarray(rng.normal(size=points.shape))
    pattern = qd.sparsity(energy)(x, ends, rest)

    @jax.jit
    def step(pattern: Any, x: Any) -> Any:
        values = qd.sparse_hessian(energy, pattern, psd=True)(x, ends, rest)
        matrix = pattern.to_bcsr(values)
        gradient = jax.grad(energy)(x, ends, rest)
        by, _ = cg(lambda v: matrix @ v + 1e-9 * v, gradient.ravel(), tol=1e-12, maxiter=1000)
        return x - by.reshape(x.shape), jnp.linalg.norm(gradient)

    norms = []
    for _ in range(8):
        x, norm = step(pattern, x)
        norms.append(float(norm))
    assert norms[-1] < 1e-12 * norms[0]
    assert any(later < earlier**1.8 for earlier, later in pairwise(norms[1:]))  # quadratically
