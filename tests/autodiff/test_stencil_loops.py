"""Adjoints of loops over many neighbours of an iteration are unrolled where the copies gather, and else stay loops."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

DRAW = np.random.default_rng(0)
OFFSETS = DRAW.integers(-3, 4, (13, 2)).astype(np.int32)
"""Some of which are equal."""
WEIGHTS = DRAW.normal(size=13).astype(np.float32)


def place(how: str, i: Any, n: int) -> Any:
    return jnp.clip(i, 0, n - 1) if how == "clamped" else i % n


def convolution(how: str, x: Any, loop: Any) -> Any:
    n, weights = x.shape[0], jnp.asarray(WEIGHTS)
    out = qd.empty(n, x.dtype)
    for i in qd.range(n):
        total = qd.local(0.0)
        for k in loop(13):
            total.value += weights[k] * jnp.sin(x[place(how, i + k - 6, n)])
        out[i] = total.value
    return out


def table(how: str, x: Any, loop: Any) -> Any:
    n, m = x.shape
    offsets = jnp.asarray(OFFSETS)
    out = qd.empty(x.shape, x.dtype)
    for i, j in qd.ndrange(n, m):
        total = qd.local(0.0)
        for k in loop(13):
            total.value += (k + 1.0) * x[place(how, i + offsets[k, 0], n), place(how, j + offsets[k, 1], m)] ** 2
        out[i, j] = total.value
    return out


def window(how: str, x: Any, loop: Any) -> Any:
    n, m = x.shape
    out = qd.empty(x.shape, x.dtype)
    for i, j in qd.ndrange(n, m):
        total = qd.local(0.0)
        for a in loop(3):
            for b in loop(5):
                total.value += (a * 5 + b) * x[place(how, i + a - 1, n), place(how, j + b - 2, m)] * x[i, j]
        out[i, j] = total.value
    return out


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("how", ["clamped", "wrapped"])
@pytest.mark.parametrize(
    ("body", "shape"), [(convolution, (40,)), (convolution, (5,)), (table, (11, 9)), (table, (2, 3)), (window, (8, 9))]
)
def test_sums_over_neighbours_gather(body: Any, shape: tuple[int, ...], how: str) -> None:
    x, bar = (jnp.asarray(DRAW.normal(size=shape), jnp.float32) for _ in range(2))

    def derivative(loop: Any) -> Any:
        f = qd.jit(lambda x: body(how, x, loop))
        return qd.jit(lambda bar, x: jax.vjp(f, x)[1](bar)[0])

    got, want = derivative(qd.range), derivative(range)  # Python's writes the body out
    np.testing.assert_allclose(got(bar, x), want(bar, x), rtol=1e-5, atol=1e-4)
    if min(shape) > 6:
        assert "accum" not in got.lower(bar, x, target="cpu").graph()


def test_what_does_not_gather_stays_a_loop() -> None:
    """Indices that data decides."""
    k = jnp.asarray(DRAW.integers(0, 50, (40, 13)), jnp.int32)

    @qd.jit
    def f(x: Any) -> Any:
        out = qd.empty(40, x.dtype)
        for i in qd.range(40):
            total = qd.local(0.0)
            for j in qd.range(13):
                total.value += x[k[i, j]] ** 2
            out[i] = total.value
        return out

    x = jnp.asarray(DRAW.normal(size=50), jnp.float32)
    back = qd.jit(lambda x: jax.grad(lambda x: f(x).sum())(x))
    graph = back.lower(x, target="cpu").graph()
    assert graph.count("accum") == 1
    np.testing.assert_allclose(back(x), 2 * x * jnp.zeros(50).at[k.ravel()].add(1.0), rtol=1e-5)
