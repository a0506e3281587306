"""Transposes that are JAX's and not those of the steps that a lane takes, from outside of the lane."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

RNG = np.random.default_rng(11)


def pulled(batched, *args):
    """Cotangents of the arguments, for the same cotangents of the results each time."""
    outs, pull = jax.vjp(batched, *args)
    return pull(jax.tree.map(lambda x: jnp.cos(jnp.arange(x.size)).reshape(x.shape).astype(x.dtype), outs))


def check(f, *args, rtol=1e-12):
    want, got = (jax.jit(lambda *xs, m=m: pulled(m(f), *xs))(*args) for m in (jax.vmap, qd.vmap))
    for w, g in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("size", [5, 40, 300])
@pytest.mark.parametrize("name", ["min", "max", "multiply"])
def test_updates_out_of_bounds(name, size):
    """JAX's rules gather there, promising that they do not; the transpose adds nothing to the nearest element."""
    count = 1 if name == "multiply" else 4
    index = np.array([[size, -size - 1, 0, size - 1], [-size - 9, size + 9, 2, 2]])[:, :count]
    x, u = RNG.normal(size=(2, size)), RNG.normal(size=(2, count))
    options = {"unique_indices": True} if name == "multiply" else {}
    check(lambda x, u: getattr(x.at[index_of(x, index)], name)(u, **options), x, u)


def index_of(x, index):
    """Indices that depend on the lane."""
    return jnp.where(x[0] > 0, *map(jnp.asarray, index))


@pytest.mark.parametrize("size", [5, 40])
def test_a_broken_promise(size):
    """The nearest element is read, and tangents with it; in reverse it gets nothing."""
    x, at = RNG.normal(size=(4, size)), np.array([0, -9 - size, size - 1, size + 3])

    def f(x, k):
        return x.at[jnp.stack([k, k + 1])].get(mode="promise_in_bounds") * x[1]

    check(lambda x, k: f(x, k.astype(int)), x, at.astype(float))
    for derivative in (lambda m: m(f)(x, at), lambda m: jax.jvp(lambda x: m(f)(x, at), (x,), (jnp.sin(x),))[1]):
        np.testing.assert_array_equal(derivative(qd.vmap), derivative(jax.vmap))
