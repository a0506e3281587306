"""Derivatives of rows that products, extremes and stores replace are those of JAX, to second and third order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

POINTS = np.array([0.7, 1.3, 2.9])


@pytest.mark.full
def test_products_of_rows_have_all_derivatives():
    @qd.jit
    def ours(x):
        r = qd.full((3, 3), 1.0)
        for i in qd.range(3):
            for j in qd.range(4):
                r.at[i].mul(x * x[j % 3])
            r.at[i, 1].max(x[i])
        return r

    def theirs(x):
        r = jnp.broadcast_to(x**4 * x[0] ** 2 * x[1] * x[2], (3, 3))
        return jnp.concatenate([r[:, :1], jnp.maximum(r[:, 1:2], x[:, None]), r[:, 2:]], 1)

    def third(f):
        hessian_along = lambda x: jax.jvp(jax.grad(f), (x,), (jnp.cos(x),))[1]  # noqa: E731
        return jax.jvp(hessian_along, (POINTS,), (jnp.sin(POINTS),))[1]

    for of in (jax.grad, jax.hessian, lambda f: lambda _: third(f)):
        got, want = (jax.jit(of(lambda x: (f(x) ** 1.2).sum()))(POINTS) for f in (ours, theirs))  # noqa: B023
        np.testing.assert_allclose(got, want, rtol=1e-10)


SHARED = [lambda b, x, k: b.at[k].max(0.8 * x), lambda b, x, k: b.at[k].max(0.5), lambda b, x, k: b.at[k].min(x)]


@pytest.mark.full
@pytest.mark.parametrize("accumulate", SHARED, ids=["linear", "constant", "min"])
def test_second_derivatives_of_what_an_extreme_replaces(accumulate):
    x, k = np.array([0.3, 0.9, 1.4, 0.2]), jnp.array([1, 0, 3, 1])

    @qd.jit
    def ours(x):
        b = qd.empty(x.shape, x.dtype)
        for i in qd.range(4):
            b[i] = x[i] ** 3
        for i in qd.range(4):
            accumulate(b, x[i], k[i])
        return b

    changes = [lambda b, x: jnp.maximum(b, 0.8 * x), lambda b, x: jnp.maximum(b, 0.5), jnp.minimum]
    change = changes[SHARED.index(accumulate)]

    def theirs(x):
        b = x**3
        for i in range(4):
            b = b.at[k[i]].set(change(b[k[i]], x[i]))
        return b

    def second(f):
        gradient = jax.grad(lambda x: (f(x) * jnp.arange(1.0, 5.0)).sum())
        return jax.jit(lambda x: jax.jvp(gradient, (x,), (jnp.ones(4),))[1])(x)

    np.testing.assert_allclose(second(ours), second(theirs), rtol=1e-12)


@pytest.mark.full
def test_a_row_read_and_written_between_loops():
    """Programs that check the index are no part of what is differentiated."""

    @qd.jit
    def ours(x, k):
        y = qd.copy(x)
        for i in qd.range(4):
            y[i, 0] = jnp.sin(x[i, 1]) * x[i, 2]
        z = qd.copy(y[jnp.where(y[0, 0] > 0, k, k + 1)] ** 2)
        for i in qd.range(30):
            z[i] = z[i] * jnp.exp(0.1 * z[i])
        y[k + 1] = z[...]
        return y

    def theirs(x, k):
        y = x.at[:, 0].set(jnp.sin(x[:, 1]) * x[:, 2])
        z = y[jnp.where(y[0, 0] > 0, k, k + 1)] ** 2
        return y.at[k + 1].set(z * jnp.exp(0.1 * z))

    x = np.random.default_rng(0).normal(size=(4, 30))
    for of in (jax.grad, lambda f: lambda x: jax.jvp(jax.grad(f), (x,), (np.cos(x),))[1]):
        got, want = (of(lambda x: (f(x, 1) ** 2).sum())(x) for f in (ours, theirs))  # noqa: B023
        np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)
