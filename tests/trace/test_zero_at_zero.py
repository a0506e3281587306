"""Which results of a jaxpr are zero where inputs are, held against what the jaxpr gives for zeros."""

import jax
import jax.numpy as jnp
import pytest

from qdtrace.trace.zero_at_zero import zero_results


def scanned(k, c, xs):
    def step(carry, x):
        a, b = carry
        return (a * k + x, b + 1.0), (a * x, b - k)

    return jax.lax.scan(step, c, xs)


def looped(k, c, xs):
    return jax.lax.while_loop(lambda s: s[0] < k + 3.0, lambda s: (s[0] + 1.0, s[1] * 2.0 + xs[0]), c)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint])
@pytest.mark.parametrize("function", [scanned, looped])
@pytest.mark.parametrize("zeros", range(16))
def test_loops_are_zero_where_they_give_zeros(function, wrap, zeros):
    k, c0, c1, xs = (bool(zeros >> bit & 1) for bit in range(4))
    ones = jnp.float32(1.5)
    args = (ones * (not k), (ones * (not c0), ones * (not c1)), jnp.full(4, 0.5) * (not xs))
    found = zero_results(jax.make_jaxpr(wrap(function))(*args), [k, c0, c1, xs])
    values = [not jnp.any(x) for x in jax.tree.leaves(function(*args))]
    assert not any(zero and not value for zero, value in zip(found, values, strict=True))
    # a carry that adds what is no zero is told from one that is multiplied: the answer is not just "no"
    if c1 and xs and function is looped:
        assert found == [False, True]
    if c0 and xs and function is scanned:
        assert found == [True, False, True, False]
