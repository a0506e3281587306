"""Loops of `lax` that count, drawn at random, as lanes of `qd.vmap`: values and derivatives are those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

LANES = 9


def drawn(seed: int):
    """A function of a float, a start and an end, whose loops count: up or down, by one or more, to an end that is a
    constant or traced or moves, until another condition ends them, with a loop inside, with a counter behind it."""
    rng = np.random.default_rng(seed)
    by, moves = int(rng.choice([1, 1, 1, 2, -1])), int(rng.choice([0, 0, 0, 1, -1]))
    moves = 0 if by == moves else moves
    index = jnp.int64 if rng.random() < 0.3 else jnp.int32
    kind = rng.integers(4)
    inner, behind, also, swapped = rng.random(4) < (0.5, 0.5, 0.3, 0.5)

    def turn(k, value, x):
        if inner:
            return lax.fori_loop(0, jnp.abs(k) & 3, lambda j, v: 0.5 * v + 0.1 * jnp.sin(x) * j, value)
        return 0.7 * value * jnp.cos(0.1 * x) + 0.01 * k

    def function(x, start, stop):
        start, stop = start.astype(index), stop.astype(index)
        if kind == 0:
            return lax.fori_loop(start, stop, lambda k, v: turn(k, v, x), x)
        if kind == 1:
            return lax.fori_loop(2, 11, lambda k, v: turn(k, v, x), x) + start
        if by < 0:
            start, stop = stop, start

        def goes_on(state):
            k, n, value, _ = state
            more = (k < n if swapped else n > k) if by > 0 else k > n
            return more & (value < 1.4) if also else more

        def body(state):
            k, n, value, count = state
            return k + by, n + moves, turn(k, value, x), count + 1

        zero = jnp.zeros((), jnp.int32)
        k, n, value, count = lax.while_loop(goes_on, body, (start, stop, x, zero))
        return value * (k + count - n) if behind else value

    return function


LONG = [pytest.param(seed, marks=pytest.mark.slow) for seed in range(100, 160)]


@pytest.mark.sample(3, full=18)
@pytest.mark.parametrize("seed", [*range(10), *LONG])
@pytest.mark.full
def test_as_lanes(seed: int) -> None:
    function, rng = drawn(seed), np.random.default_rng(seed)
    x = rng.uniform(0.5, 1.5, LANES)
    start, stop = rng.integers(-3, 4, LANES, np.int32), rng.integers(-4, 14, LANES, np.int32)

    def theirs(x):
        return jax.vmap(function)(x, start, stop)

    def ours(x):
        return qd.vmap(function)(x, start, stop)

    np.testing.assert_allclose(jax.jit(ours)(x), theirs(x), rtol=1e-12)
    got = jax.jit(jax.grad(lambda x: ours(x).sum()))(x)
    np.testing.assert_allclose(got, jax.jvp(theirs, (x,), (np.ones_like(x),))[1], rtol=1e-10, atol=1e-14)
