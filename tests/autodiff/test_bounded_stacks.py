"""Stacks and tapes of loops whose bounds are clamped or triangular: their bytes, and gradients that are JAX's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.autodiff.lanes import each

X = np.linspace(0.1, 1.0, 90, dtype=np.float32)
N = np.arange(90, dtype=np.int32) - 4


def stack(f, *args, target=None) -> int:
    """Bytes that a lane of the gradient keeps."""
    low = qd.jit(jax.grad(f)).lower(*args, **({} if target is None else {"target": target}))
    return sum(choice.nbytes for choice in low.storage)


def recurrence(limit):
    """A recurrence whose number of steps is data, limited by a function of it."""

    @each
    def f(i, x, n):
        v = qd.local(x[i])
        for k in qd.range(limit(n[i])):
            v.value = jnp.sin(v.value) + 0.1 * k
        return v.value

    return lambda x, n: f(x, n).sum()


CASES = {
    "clamped": (lambda n: jnp.minimum(n, 64), N, 64 * 4),
    "clamped, of 16 bits": (lambda n: jnp.minimum(n, 64), N.astype(np.uint16), 64 * 4),
    "remainder": (lambda n: n % 30, N, 29 * 4),
    # as for any number of iterations
    "open": (lambda n: n, N, 8492),
    "merely of 16 bits": (lambda n: n, N.astype(np.uint16), 8492),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", CASES)
def test_bytes_of_a_recurrence(name):
    limit, n, want = CASES[name]
    assert stack(recurrence(limit), X, n) == want


def test_bytes_of_a_recurrence_on_a_gpu():
    assert stack(recurrence(lambda n: jnp.minimum(n, 64)), X, N, target="sm_90") == 60


@pytest.mark.full
@pytest.mark.cpu
def test_gradients_of_a_clamped_recurrence():
    x = X.astype(np.float64)

    def theirs(x, n):
        return jax.lax.fori_loop(0, jnp.minimum(n, 64), lambda k, v: jnp.sin(v) + 0.1 * k, x)

    _, want = jax.jvp(jax.vmap(theirs), (x, N), (np.ones_like(x), np.zeros(len(x), jax.dtypes.float0)))
    got = jax.grad(recurrence(lambda n: jnp.minimum(n, 64)))(x, N)
    np.testing.assert_allclose(got, want, rtol=1e-12)


def cholesky(size):
    """The lower half of the factor, in place; the gradient of a weighted sum of it."""

    @qd.jit
    def factor(a):
        for i in qd.range(a.shape[0]):
            for j in qd.range(size):
                s = qd.local(a[i, j, j])
                for k in qd.range(j):
                    s.value -= a[i, j, k] * a[i, j, k]
                pivot = jnp.sqrt(s.value)
                a[i, j, j] = pivot
                for r in qd.range(j + 1, size):
                    t = qd.local(a[i, r, j])
                    for k in qd.range(j):
                        t.value -= a[i, r, k] * a[i, j, k]
                    a[i, r, j] = t.value / pivot
        return a

    rng = np.random.default_rng(size)
    a = rng.normal(size=(5, size, size))
    a = a @ a.swapaxes(1, 2) + size * np.eye(size)
    weights = np.tril(rng.normal(size=a.shape))
    return lambda a: (factor(a) * weights.astype(a.dtype)).sum(), a, weights


def lane_bytes(size, target=None):
    f, a, _ = cholesky(size)
    low = qd.jit(jax.grad(f)).lower(a.astype(np.float32), **({} if target is None else {"target": target}))
    return low.memory_analysis()["stack_per_lane"]


@pytest.mark.parametrize("target", [None, "sm_90"])
@pytest.mark.parametrize(("size", "most"), [(12, 4000), (20, 10_000), (30, 24_000)])
def test_bytes_of_a_cholesky_factor(size, most, target):
    """The matrix, its adjoint, and what its stores overwrite."""
    assert 0 < lane_bytes(size, target) <= min(most, 3 * 4 * size * size)


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("size", [3, 8, 12])
def test_gradients_of_a_cholesky_factor(size):
    f, a, weights = cholesky(size)

    def theirs(a):
        return (jnp.linalg.cholesky(a, symmetrize_input=False) * weights).sum()

    want = jax.grad(theirs)(a)
    want = np.tril(want) + np.tril(np.swapaxes(want, 1, 2), -1)
    np.testing.assert_allclose(np.tril(jax.grad(f)(a)), want, atol=1e-12)


@pytest.mark.full
@pytest.mark.parametrize("target", [None, "sm_90"])
def test_shared_memory_in_a_triangle_has_a_tape(target):
    """Elements that several lanes name make no row of their own."""

    @qd.jit
    def f(x, p):
        for i in qd.range(x.shape[0] // 8):
            for a in qd.range(7):
                for b in qd.range(a):
                    x[8 * p[i] + a] = jnp.sin(x[8 * p[i] + b]) + x[8 * p[i] + a]
        return x

    p = np.arange(5, dtype=np.int32)[::-1].copy()
    x = np.linspace(0.1, 1.0, 40)
    low = qd.jit(jax.grad(lambda x: f(x, p).sum())).lower(x, **({} if target is None else {"target": target}))
    assert low.memory_analysis()["stack_per_lane"] < 2000
    if target is None:
        qd.check_grads(lambda x: f(x, p).sum(), (x,))
