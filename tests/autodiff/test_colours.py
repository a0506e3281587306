"""Constraints of one colour: each iteration updates elements that no other one does, at two places."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

POINTS = jnp.asarray(np.random.default_rng(0).integers(0, 4, (11, 2)), jnp.float32)
WEIGHTS = jnp.asarray(np.random.default_rng(1).integers(-3, 4, (11, 2)), jnp.float32)


def coloured(p, apart):
    """Moves the ends of the springs of a chain, one colour after the other."""
    for first in range(apart):
        for k in qd.range((p.shape[0] - 1 - first) // apart):
            a = apart * k + first
            d = p[a] - p[a + 1]
            p[a] -= d * d
            p[a + 1] += 2 * d
    return p


def in_arrays(p, apart):
    for first in range(apart):
        a = apart * np.arange((p.shape[0] - 1 - first) // apart) + first
        d = p[a] - p[a + 1]
        p = p.at[a].add(-d * d).at[a + 1].add(2 * d)
    return p


@pytest.mark.parametrize("apart", [2, 3])
def test_values_and_gradients(apart: int) -> None:
    """All numbers are small integers, so floats are exact."""
    ours = qd.jit(coloured, static_argnums=1)
    assert all("locks" not in t.reason and "copies" not in t.reason for t in ours.lower(POINTS, apart).tasks)
    np.testing.assert_array_equal(ours(POINTS, apart), in_arrays(POINTS, apart))
    mine, theirs = (jax.grad(lambda p, f=f: (f(p, apart) * WEIGHTS).sum())(POINTS) for f in (ours, in_arrays))
    np.testing.assert_array_equal(mine, theirs)
