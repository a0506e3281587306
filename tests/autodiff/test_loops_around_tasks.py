"""Reverse mode of `qd.while_` around parallel loops, where JAX's `while_loop` has none."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.compose import loops

X = np.linspace(0.1, 1.0, 4)


@qd.jit
def ours(x, n, c):
    k = qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: k[()] < n):
        for i in qd.range(x.shape[0]):
            x[i] = jnp.sin(x[i]) * c + 0.1 * x[i]
        k[()] += 1
    return x


def theirs(x, n, c):
    for _ in range(n):
        x = jnp.sin(x) * c + 0.1 * x
    return x


def loss(f, n):
    return lambda x, c: (f(x, n, c) ** 2).sum()


@pytest.mark.parametrize("stack_bytes", [1, 1 << 20], ids=["six states", "all states"])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 30])
def test_first_derivatives(n, stack_bytes, monkeypatch):
    monkeypatch.setattr(loops, "STACK_BYTES", stack_bytes)
    jax.clear_caches()
    got, want = (jax.grad(loss(f, n), (0, 1))(X, 1.1) for f in (ours, theirs))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_forward_and_second_derivatives():
    (_, got), (_, want) = (jax.jvp(lambda x, f=f: f(x, 5, 1.1), (X,), (X,)) for f in (ours, theirs))
    np.testing.assert_allclose(got, want, rtol=1e-12)
    got, want = (jax.jit(jax.hessian(loss(f, 5)))(X, 1.1) for f in (ours, theirs))
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
