"""Derivatives that JAX takes while a function is traced, inside of a loop's body or of a lane."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

X = jnp.array([1.5, 2.0, 9.0])


def root(a):
    def far(state):
        return jnp.abs(state[1]) > 1e-4

    def step(state):
        change = 0.5 * (state[0] - a / state[0])
        return state[0] - change, change

    return jax.lax.while_loop(far, step, (a, jnp.float32(1)))[0]


def in_a_body(x):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = jax.grad(root)(x[i])
    return out


def test_reverse_mode_of_an_unknown_length_is_refused_with_the_way_out() -> None:
    words = "has no reverse mode of a loop of unknown length"
    with pytest.raises(qd.GradientError, match=words) as error:
        qd.jit(in_a_body)(X)
    line = in_a_body.__code__.co_firstlineno + 3
    assert f"test_grad_inside.py:{line} in in_a_body" in str(error.value)
    assert "jax.grad(lambda x: qd.vmap(f)(x).sum())(x)" in str(error.value)
    with pytest.raises(qd.GradientError, match=words) as error:
        qd.vmap(jax.grad(root))(X)
    # JAX reverses the loop after the function has returned: the line is that of the loop
    assert re.search(r"test_grad_inside\.py:\d+ in root", str(error.value))


@pytest.mark.full
def test_the_ways_out_that_the_error_names_give_the_gradients() -> None:
    want = 0.5 / np.sqrt(X)
    # the last step of Newton's method has squared what is below 1e-4
    np.testing.assert_allclose(jax.grad(lambda x: qd.vmap(root)(x).sum())(X), want, rtol=1e-6)
    np.testing.assert_allclose(qd.vmap(jax.jacfwd(root))(X), want, rtol=1e-6)


@pytest.mark.full
def test_reverse_mode_of_a_known_length_works_inside() -> None:
    def power(a):
        return jax.lax.fori_loop(0, 5, lambda _, s: s * jnp.sin(a), a)

    np.testing.assert_allclose(qd.vmap(jax.grad(power))(X), jax.vmap(jax.grad(power))(X), rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("nested", [False, True])
def test_derivatives_of_integers_hold_nothing(nested: bool) -> None:
    def pulled_back(a):
        return jax.vjp(lambda n, t: t * n, jnp.arange(2), a)[1](jnp.ones(2, a.dtype))

    x = jnp.stack([X, X]) if nested else X
    made, expected = (around(around(pulled_back) if nested else pulled_back)(x) for around in (qd.vmap, jax.vmap))
    assert made[0].dtype == jax.dtypes.float0
    assert made[0].shape == expected[0].shape
    np.testing.assert_array_equal(made[1], expected[1])
    only = qd.vmap(jax.grad(lambda n, t: t * n, allow_int=True), in_axes=(None, 0))(3, X)
    assert (only.dtype, only.shape) == (jax.dtypes.float0, X.shape)
