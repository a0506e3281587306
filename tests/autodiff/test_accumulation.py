"""Derivatives of accumulations into shared places: sums, extremes with ties, products with zeros."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError

K = np.array([0, 1, 2, 0, 1, 0, 3])
RNG = np.random.default_rng(0)
W, U = RNG.normal(size=5), RNG.normal(size=7)
IN_JAX = {"add": jnp.add, "max": jnp.maximum, "min": jnp.minimum, "mul": jnp.multiply}


def ours(op):
    @qd.jit
    def f(x, r):
        y, k = qd.empty(x.shape, x.dtype), jnp.asarray(K)
        for i in qd.range(x.shape[0]):
            v = jnp.sin(x[i]) * 2
            y[i] = v * v
            getattr(r.at[k[i]], op)(v)
        return r, y

    return f


def theirs(op):
    def f(x, r):
        v, out = jnp.sin(x) * 2, jnp.asarray(r)
        for i, k in enumerate(K):
            out = out.at[k].set(IN_JAX[op](out[k], v[i]))
        return out, v * v

    return f


def loss(f):
    return lambda x, r: (f(x, r)[0] * W).sum() + (f(x, r)[1] * U).sum()


def check(op, x, r):
    f, g = ours(op), theirs(op)
    pairs = [(jax.grad(loss(h), (0, 1))(x, r), jax.jvp(h, (x, r), (U, W))[1]) for h in (f, g)]
    for got, want in zip(*map(jax.tree.leaves, pairs), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("op", IN_JAX)
def test_first_derivatives(op):
    check(op, RNG.normal(size=7), RNG.normal(size=5))


@pytest.mark.parametrize("zeros", [[0], [0, 3], [0, 3, 6], [1, 2, 4]])
@pytest.mark.parametrize("before", [[], [0], [3, 4]])
def test_products_with_zeros(zeros, before):
    x, r = RNG.normal(size=7), RNG.normal(size=5)
    x[zeros], r[before] = 0, 0
    check("mul", x, r)


@pytest.mark.parametrize("op", ["add", "max", "min"])
def test_second_derivatives(op):
    x, r = RNG.normal(size=7), RNG.normal(size=5)
    np.testing.assert_allclose(jax.hessian(loss(ours(op)))(x, r), jax.hessian(loss(theirs(op)))(x, r), atol=1e-10)


def test_ties_share_equally():
    x = np.array([1.0, 2, 3, 1, 2, 1, 4])
    got = jax.grad(lambda x: ours("max")(x, np.zeros(5))[0].sum())(x)
    share = np.array([1 / 3, 1 / 2, 1, 1 / 3, 1 / 2, 1 / 3, 0])  # sin(4) is below what was there
    share[[1, 4]] = 1 / 2
    np.testing.assert_allclose(got, 2 * np.cos(x) * share, rtol=1e-12)


def test_products_have_first_derivatives_only():
    with pytest.raises(GradientError, match=r"(?s)product accumulated .* first derivatives only, got order 2.*help:"):
        jax.hessian(lambda x: ours("mul")(x, np.ones(5))[0].sum())(np.ones(7))


def test_old_values_of_atomics_are_refused():
    @qd.jit
    def f(x, r):
        y = qd.empty(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            y[i] = qd.atomic_add(r, 0, x[i]) * x[i]
        return y

    with pytest.raises(GradientError, match=r"(?s)accumulations without their old value, got `atomic` add.*help:"):
        jax.grad(lambda x: f(x, np.zeros(1)).sum())(np.ones(3))
