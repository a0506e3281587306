# ruff: noqa: B023 - conditions of loops are asked while they are traced
"""Reverse mode of iterations that change rows of their own in loops of any length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError

X = np.linspace(0.3, 1.2, 12).reshape(3, 4)


def recurrence(x, n):
    for i in qd.range(x.shape[0]):
        for k in qd.range(2, n):
            x[i, k] = x[i, k - 1] * x[i, k - 2] + 0.3
    return x


def of_columns(x, n):
    for j in qd.range(x.shape[1]):
        for k in qd.range(1, n):
            x[k, j] += jnp.sin(x[k - 1, j]) * x[k, j]
        x[0, j] = x[n - 1, j] ** 2
    return x


def sorted_by_insertion(x, n):
    for i in qd.range(x.shape[0]):
        for k in qd.range(1, x.shape[1]):
            j = qd.local(k)
            for _ in qd.while_(lambda: j.value > 0):
                qd.break_if(x[i, j.value - 1] >= x[i, j.value])
                above, below = x[i, j.value - 1], x[i, j.value]
                x[i, j.value - 1] = below
                x[i, j.value] = above
                j += -1
        for k in qd.range(x.shape[1]):
            x[i, k] = x[i, k] * (k + 1.0)
    return x


def relaxed(x, n):
    for i in qd.range(x.shape[0]):
        for _ in qd.range(n):
            for k in qd.range(1, x.shape[1]):
                x[i, k] = x[i, k] * 0.5 + jnp.sin(x[i, k - 1])
    return x


def of_the_row_before(x, n):
    y = qd.copy(x)
    for i in qd.range(x.shape[0]):
        with qd.when(i > 0):
            for t in qd.range(n):
                k = t % 3
                y[i - 1, k] = jnp.cos(y[i - 1, k + 1]) * x[i, k]
    return y


def serial(x, n):
    for t in qd.range(1, n, serial=True):
        for j in qd.range(x.shape[1]):
            x[t % 3, j] = jnp.sin(x[(t - 1) % 3, j]) + 0.1 * x[t % 3, j]
    return x


def two_arrays(x, n):
    y = qd.copy(x)
    for i in qd.range(x.shape[0]):
        for t in qd.range(n):
            x[i, t % 4] = jnp.sin(y[i, (t + 1) % 4]) * x[i, t % 4]
            y[i, t % 4] = x[i, (t + 3) % 4] + 0.2 * y[i, t % 4]
    return x, y


def squares(f, n):
    ours = qd.jit(f)
    return lambda x: sum((leaf**2).sum() for leaf in jax.tree.leaves(ours(x, n)))


@pytest.mark.full
@pytest.mark.parametrize("n", [3, 130])
@pytest.mark.parametrize("f", [relaxed, of_the_row_before, serial, two_arrays])
def test_any_number_of_iterations(f, n):
    qd.check_grads(squares(f, n), (X,))


@pytest.mark.full
@pytest.mark.parametrize(("f", "n"), [(recurrence, 4), (recurrence, 0), (of_columns, 3), (sorted_by_insertion, 0)])
def test_rows(f, n):
    qd.check_grads(squares(f, n), (X,))


@pytest.mark.full
def test_second_derivatives():
    qd.check_grads(squares(recurrence, 4), (X,), order=2)


@pytest.mark.full
def test_long_rows_of_a_known_number_of_iterations():
    """What would be too long for a tape is kept as a row."""

    def f(x, n):
        for i in qd.range(x.shape[0]):
            for t in qd.range(200_000):
                x[i, t % 4] = x[i, t % 4] + 1e-6 * jnp.sin(x[i, (t + 1) % 4])
        return x

    qd.check_grads(squares(f, 0), (X,))


@pytest.mark.parametrize(
    "row",
    [lambda p, i, k: (p[i], k % 4), lambda p, i, k: (0, (4 * i + k) % 4), lambda p, i, k: ((i + k) % 3, k % 4)],
    ids=["by data", "shared", "not fixed"],
)
def test_rows_that_are_not_known_to_be_their_own(row):
    @qd.jit
    def f(x, p, n):
        for i in qd.range(x.shape[0]):
            for k in qd.range(n):
                x[row(p, i, k)] = jnp.sin(x[row(p, i, k + 1)])
        return x

    pattern = r"(?s)at most a known number of iterations.*loads of `x`.*known only at run time.*at .*: .*py:1.*help:"
    with pytest.raises(GradientError, match=pattern):
        jax.grad(lambda x: f(x, np.arange(3), 3).sum())(X)


@pytest.mark.full
def test_a_linear_recurrence_needs_no_values():
    weights = np.random.default_rng(2).normal(size=X.shape)

    @qd.jit
    def f(x, p, n):
        for i in qd.range(x.shape[0]):
            for k in qd.range(n):
                x[p[i], k % 4] = x[p[i], (k + 1) % 4] * 2
        return x

    def theirs(x):
        for k in range(7):
            x = x.at[:, k % 4].set(2 * x[:, (k + 1) % 4])
        return x

    got = jax.grad(lambda x: (weights * f(x, np.array([2, 0, 1]), 7)).sum())(X)
    np.testing.assert_allclose(got, jax.grad(lambda x: (weights * theirs(x)).sum())(X), rtol=1e-12)


def test_rows_that_are_too_long():
    x = np.zeros((2, 9000))
    with pytest.raises(GradientError, match="at most 65536 bytes of it that each iteration of the task has for itself"):
        jax.jit(jax.grad(squares(relaxed, 3))).lower(x)


@pytest.mark.full
@pytest.mark.parametrize("sign", [1, -1])
def test_segments_of_which_each_element_is_loaded_before_it_is_stored(sign):
    """No iteration finds what another one has stored, so values are loaded again."""

    @qd.jit
    def f(x, ends):
        for i in qd.range(ends.shape[0] - 1):
            for j in qd.range(ends[i], ends[i + 1]):
                k = j if sign > 0 else x.shape[0] - 1 - j
                with qd.when(x[k] > 0.2):
                    x[k] = jnp.sin(x[k]) * x[k]
        return x

    x = np.linspace(-1, 1.5, 300)
    got = jax.grad(lambda x: (f(x, np.array([0, 7, 7, 250, 300])) ** 2).sum())(x)
    want = jax.grad(lambda x: (jnp.where(x > 0.2, jnp.sin(x) * x, x) ** 2).sum())(x)
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.full
def test_segments_that_iterations_come_back_to():
    """A second loop around, or an element loaded after its store: values change in between."""

    @qd.jit
    def f(x, ends):
        for i in qd.range(ends.shape[0] - 1):
            for _ in qd.range(2):
                for j in qd.range(ends[i], ends[i + 1]):
                    x[j] = jnp.sin(x[j]) * x[j]
        return x

    @qd.jit
    def g(x, ends):
        for i in qd.range(ends.shape[0] - 1):
            for j in qd.range(ends[i], ends[i + 1]):
                x[j] = jnp.sin(x[j])
                x[j] = x[j] * x[j + 1 - 1]
        return x

    @qd.jit
    def h(x, ends):
        for i in qd.range(ends.shape[0] - 1):
            for j in qd.range(ends[i] + 1, ends[i + 1]):
                x[j] = jnp.sin(x[j]) * x[j - 1] * x[j - (j - ends[i]) // 2]
        return x

    x, ends = np.linspace(0.1, 1.5, 9), np.array([0, 4, 9])
    with pytest.raises(GradientError, match="loads of `x`"):
        jax.grad(lambda x: f(x, ends).sum())(x)
    np.testing.assert_allclose(jax.grad(lambda x: g(x, ends).sum())(x), np.sin(2 * x), rtol=1e-12)
    qd.check_grads(lambda x: h(x, ends).sum(), (x,), order=1)  # each is stored once
