"""Derivatives of programs of several loops: in conditions and in `qd.while_`, with array code in between.

Each is written a second time with whole arrays.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

X, C = np.linspace(0.2, 1.3, 5), 0.7


def agrees(ours, theirs, *more, order=1):
    """Equal values, gradients by x and c, and for order 2 products of the Hessian."""
    f, g = (lambda x, c, h=h: sum((leaf**2).sum() for leaf in jax.tree.leaves(h(x, c, *more))) for h in (ours, theirs))
    np.testing.assert_allclose(f(X, C), g(X, C), rtol=1e-12)
    for got, want in zip(jax.grad(f, (0, 1))(X, C), jax.grad(g, (0, 1))(X, C), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    if order < 2:
        return
    along = (np.cos(3 * X), 0.4)
    (_, got), (_, want) = (jax.jvp(jax.grad(h), (X, C), along) for h in (f, g))
    np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("n", [0, 6])
@pytest.mark.full
def test_swapped_buffers(n):
    """Two arrays that take turns, by Python names in each iteration, and by copying."""

    @qd.jit
    def ours(x, c, n):
        y, k = qd.zeros(x.shape, x.dtype), qd.zeros((), jnp.int32)
        m = x.shape[0]
        for _ in qd.while_(lambda: k[()] < n):
            for a, b in ((x, y), (y, x)):
                for i in qd.range(m):
                    b[i] = jnp.sin(a[i]) + c * a[(i + 1) % m]
            k[()] += 1
        return x, y

    def theirs(x, c, n):
        y = jnp.zeros_like(x)
        for _ in range(n):
            y = jnp.sin(x) + c * jnp.roll(x, -1)
            x = jnp.sin(y) + c * jnp.roll(y, -1)
        return x, y

    agrees(ours, theirs, n, order=2 if n == 6 else 1)


@pytest.mark.full
def test_array_code_in_the_loop_and_around_it():
    @qd.jit
    def ours(x, c):
        m, k = x.shape[0], qd.zeros((), jnp.int32)
        y = qd.copy(jnp.cumsum(x[...]) * c)
        for _ in qd.while_(lambda: (k[()] == 0) | (jnp.sum(y[...]) > 8.2)):
            for i in qd.range(m):
                y[i] = y[i] * 1.1 + jnp.cos(x[i])
            x[...] = jnp.sort(x[...] * y[...]) / (1 + jnp.max(y[...]))
            for i in qd.range(m):
                x[i] = x[i] + c * y[m - 1 - i]
            k[()] += 1
        total = jnp.linalg.norm(x[...])
        for i in qd.range(m):
            y[i] = y[i] / total
        return y

    def theirs(x, c):
        y = jnp.cumsum(x) * c
        for k in range(3):  # as many as the condition allows
            assert k == 0 or jnp.sum(y) > 8.2
            y = y * 1.1 + jnp.cos(x)
            x = jnp.sort(x * y) / (1 + jnp.max(y)) + c * y[::-1]
        assert jnp.sum(y) <= 8.2
        return y / jnp.linalg.norm(x)

    agrees(ours, theirs)


@pytest.mark.parametrize("c", [0.7, -0.7])
@pytest.mark.full
def test_conditions_around_loops(c):
    @qd.jit
    def ours(x, c):
        m, y = x.shape[0], qd.ones(x.shape, x.dtype)
        for i in qd.range(m):
            y[i] = x[i] ** 2
        with qd.when(c > 0):
            for i in qd.range(m):
                x[i] = x[i] * y[(i + 1) % m]
            with qd.when(x[0] > 0.1):
                for i in qd.range(m):
                    y[i] = jnp.exp(-y[i]) * x[i]
        with qd.otherwise():
            for i in qd.range(m):
                y[i] = c * jnp.sqrt(y[i])
        for i in qd.range(m):
            x[i] = x[i] * y[i]
        return x

    def theirs(x, c):
        y = x**2
        if c > 0:
            x = x * jnp.roll(y, -1)
            if x[0] > 0.1:
                y = jnp.exp(-y) * x
        else:
            y = c * jnp.sqrt(y)
        return x * y

    f, g = (lambda x, c, h=h: (h(x, c) ** 2).sum() for h in (ours, theirs))
    for x in (X, X + 1):
        for got, want in zip(jax.grad(f, (0, 1))(x, c), jax.grad(g, (0, 1))(x, c), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.full
def test_loops_around_loops_with_conditions_and_jumps():
    @qd.jit
    def ours(x, c):
        m, k, j = x.shape[0], qd.zeros((), jnp.int32), qd.zeros((), jnp.int32)
        y = qd.zeros(x.shape, x.dtype)
        for _ in qd.while_(lambda: k[()] < 5):
            k[()] += 1
            for i in qd.range(m):
                x[i] = x[i] + 0.1 * jnp.sin(x[i] * k[()])
            qd.continue_if(k[()] % 2 == 0)
            j[()] = 0
            for _ in qd.while_(lambda: j[()] < k[()]):
                for i in qd.range(m):
                    y[i] += c * x[i] * jnp.cos(y[i])
                j[()] += 1
            with qd.when(k[()] == 3):
                for i in qd.range(m):
                    x[i] = x[i] * y[m - 1 - i]
        return x, y

    def theirs(x, c):
        y = jnp.zeros_like(x)
        for k in range(1, 6):
            x = x + 0.1 * jnp.sin(x * k)
            if k % 2 == 0:
                continue
            for _ in range(k):
                y = y + c * x * jnp.cos(y)
            if k == 3:
                x = x * y[::-1]
        return x, y

    agrees(ours, theirs)


@pytest.mark.full
def test_python_loops_around_loops():
    """Each step is loops of its own, and what a step changes another one needs."""

    @qd.jit
    def ours(x, c):
        m, total = x.shape[0], qd.zeros(3, x.dtype)
        for t in range(3):
            for i in qd.range(m):
                total[t] += x[i] ** 2
            for i in qd.range(m):
                x[i] = x[i] / (1 + total[t]) + c * jnp.sin(x[i])
            for i in qd.range(m):
                x[i] = x[i] * total[t - 1] if t else x[i]
        return x, total

    def theirs(x, c):
        totals = []
        for t in range(3):
            totals.append((x**2).sum())
            x = x / (1 + totals[t]) + c * jnp.sin(x)
            x = x * totals[t - 1] if t else x
        return x, jnp.stack(totals)

    agrees(ours, theirs)
