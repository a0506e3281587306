"""Derivatives of programs of several loops: in conditions and in `qd.while_`, with array code in between."""

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

X, C = np.linspace(0.2, 1.3, 5), 0.7


def agrees(f, *more, order=1):
    """Checks derivatives by x and c."""
    qd.check_grads(lambda x, c: f(x, c, *more), (X, C), order)


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

    agrees(ours, n, order=2 if n == 6 else 1)


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

    agrees(ours)


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

    for x in (X, X + 1):
        qd.check_grads(ours, (x, c))


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

    agrees(ours)


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

    agrees(ours)
