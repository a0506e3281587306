"""Whole user programs through `qd.jit`, against NumPy or plain JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 31, 33, 1000])
def test_arguments_are_values(n: int) -> None:
    @qd.jit
    def f(x):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + 1
        return x

    x = jnp.arange(n, dtype=jnp.int32)
    np.testing.assert_array_equal(f(x), np.arange(n) + 1)
    np.testing.assert_array_equal(x, np.arange(n))


@pytest.mark.full
def test_spring_step_of_the_readme() -> None:
    @qd.jit
    def spring_step(x, v, edge, rest, dt):
        f = qd.zeros(x.shape, x.dtype)
        for e in qd.range(edge.shape[0]):
            a, b = edge[e, 0], edge[e, 1]
            d = x[b] - x[a]
            n = jnp.linalg.norm(d) + 1e-9
            pull = 50.0 * (n - rest[e]) * d / n
            f[a] += pull
            f[b] += -pull
        for i in qd.range(x.shape[0]):
            v[i] = (v[i] + dt * f[i]) * 0.99
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + dt * v[i]
        return x, v

    n = 100
    x, v = f32(n, 2), f32(n, 2)
    edge = np.stack([np.arange(n), (np.arange(n) * 7 + 3) % n], 1).astype(np.int32)
    rest = np.abs(f32(n))
    dt = np.float32(0.01)
    force = np.zeros_like(x)
    d = x[edge[:, 1]] - x[edge[:, 0]]
    length = np.linalg.norm(d, axis=1) + np.float32(1e-9)
    pull = (50 * (length - rest))[:, None] * d / length[:, None]
    np.add.at(force, edge[:, 0], pull)
    np.add.at(force, edge[:, 1], -pull)
    want_v = (v + dt * force) * np.float32(0.99)
    got_x, got_v = spring_step(x, v, edge, rest, dt)
    # sums of a few terms in another order: a few roundings of values up to about 100
    np.testing.assert_allclose(got_v, want_v, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got_x, x + dt * want_v, rtol=1e-5, atol=1e-5)

    def loss(v0):
        def body(c, _):
            return spring_step(*c, edge, rest, dt), None

        (x1, _), _ = jax.lax.scan(body, (jnp.asarray(x), v0), None, length=3)
        return jnp.sum(x1)

    assert np.isfinite(jax.jit(loss)(jnp.asarray(v)))


def test_nested_functions_and_pytrees() -> None:
    @qd.dataclass
    class State:
        x: jax.Array
        v: jax.Array

    @qd.jit
    def drift(s, dt):
        for i in qd.range(s.x.shape[0]):
            s.x[i] = s.x[i] + dt * s.v[i]
        return s

    @qd.jit
    def two(s, dt):
        a = drift(s, dt)
        b = drift(a, dt)
        for i in qd.range(b.x.shape[0]):
            b.v[i] = b.v[i] + a.x[i]
        return {"state": b, "first": a.x}

    x, v = f32(20), f32(20)
    out = two(State(x, v), np.float32(0.5))
    first = x + np.float32(0.5) * v
    np.testing.assert_array_equal(out["first"], first)
    np.testing.assert_array_equal(out["state"].x, first + np.float32(0.5) * v)
    np.testing.assert_array_equal(out["state"].v, v + first)
