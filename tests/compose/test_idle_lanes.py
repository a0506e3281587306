"""`jax.vmap` of loops and conditions of JAX around calls that may fail: lanes that JAX runs in vain do not fail."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

X = np.arange(8, dtype=np.float32) + 1
KEYS = np.array([0, 5, 7, 8, 20], np.int32)


@qd.jit
def square(x: Any, k: Any) -> Any:
    o = qd.zeros((), x.dtype)
    for _ in qd.range(1):
        o[()] = x[k] * x[k]
    return o


@qd.jit
def checked(x: Any, k: Any) -> Any:
    o = qd.zeros((), x.dtype)
    for _ in qd.range(1):
        qd.check((k >= 0) & (k < 8), "outside")
        o[()] = x[jnp.clip(k, 0, 7)] * (k + 1)
    return o


def rest(x: Any, k: Any) -> Any:
    """A loop that lanes leave at different times, behind their last index."""
    return lax.while_loop(lambda s: s[0] < 8, lambda s: (s[0] + 1, s[1] + square(x, s[0])), (k, 0.0))[1]


def rest_by_steps(x: Any, k: Any) -> Any:
    return lax.fori_loop(k, 8, lambda j, s: s + checked(x, j), 0.0)


def taken(x: Any, k: Any) -> Any:
    return lax.cond(k < 8, lambda: square(x, k), lambda: -x[0])


def one_of_three(x: Any, k: Any) -> Any:
    return lax.switch(jnp.minimum(k // 4, 2), [lambda: square(x, k), lambda: checked(x, k), lambda: -1.0])


def cond_in_a_loop(x: Any, k: Any) -> Any:
    def step(s: Any) -> Any:
        even = lax.cond(s[0] % 2 == 0, lambda: square(x, s[0] + 1), lambda: checked(x, s[0] - 1))
        return s[0] + 1, s[1] + even

    return lax.while_loop(lambda s: s[0] < 8, step, (k, 0.0))[1]


def loop_in_a_cond(x: Any, k: Any) -> Any:
    return lax.cond(k < 8, lambda: rest(x, k), lambda: lax.cond(k < 10, lambda: square(x, k - 8), lambda: 0.0))


def under_jit_and_scan(x: Any, k: Any) -> Any:
    step = jax.jit(lambda s, j: (s + lax.cond(k + j < 8, lambda: square(x, k + j), lambda: 0.0), j))
    return lax.scan(step, 0.0, jnp.arange(3))[0]


def other_state(x: Any, k: Any) -> Any:
    """Keys, bools and arrays in the state; an unused buffer."""

    def step(s: Any) -> Any:
        key, j, rows, total = s
        return jax.random.fold_in(key, j), j + 1, rows.at[j % 3].add(square(x, j)), total + square(x, j)

    state = jax.random.key(3), k, jnp.zeros(3), jnp.float32(0)
    key, _, rows, total = lax.while_loop(lambda s: s[1] < 8, step, state)
    return total + rows @ jnp.arange(3.0) + jax.random.uniform(key)


FUNCTIONS = [
    rest, rest_by_steps, taken, one_of_three, cond_in_a_loop, loop_in_a_cond, under_jit_and_scan, other_state,
]  # fmt: skip
over_keys = pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)


def each(f: Callable[..., Any], x: Any, keys: Any) -> np.ndarray:
    return np.array([float(f(x, k)) for k in np.ravel(keys)]).reshape(np.shape(keys))


@pytest.mark.sample(4, full=3)
@over_keys
@pytest.mark.parametrize("options", [{}, {"debug": True}], ids=["compiled", "debug"])
@pytest.mark.full
def test_idle_lanes_do_not_fail(f: Callable[..., Any], options: dict[str, Any]) -> None:
    with qd.options(**options):
        for keys in (KEYS, KEYS[-2:], KEYS[:2]) if not options else (KEYS,):
            np.testing.assert_allclose(jax.vmap(f, (None, 0))(X, keys), each(f, X, keys), rtol=1e-5)


@pytest.mark.sample(full=3)
@over_keys
@pytest.mark.full
def test_several_axes(f: Callable[..., Any]) -> None:
    keys = np.array([[0, 5], [8, 20], [7, 3]], np.int32)
    got = jax.jit(jax.vmap(jax.vmap(f, (None, 0)), (None, 0)))(X, keys)
    np.testing.assert_allclose(got, each(f, X, keys), rtol=1e-5)
    both = np.stack([X, X + 1])
    got = jax.vmap(lambda k: jax.vmap(lambda x: f(x, k))(both))(KEYS)
    np.testing.assert_allclose(got, np.stack([each(f, x, KEYS) for x in both], 1), rtol=1e-5)


@pytest.mark.sample(full=3)
@over_keys
@pytest.mark.full
def test_derivatives(f: Callable[..., Any]) -> None:
    tangent = np.linspace(1, 2, 8, dtype=np.float32)
    along = lambda k: jax.jvp(lambda x: f(x, k), (X,), (tangent,))[1]  # noqa: E731
    want = np.array([float(along(k)) for k in KEYS])
    np.testing.assert_allclose(jax.jvp(lambda x: jax.vmap(f, (None, 0))(x, KEYS), (X,), (tangent,))[1], want, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(along)(KEYS), want, rtol=1e-5)
    if f in (taken, one_of_three, under_jit_and_scan):
        gradients = np.stack([jax.grad(f)(X, k) for k in KEYS])
        np.testing.assert_allclose(jax.vmap(jax.grad(f), (None, 0))(X, KEYS), gradients, rtol=1e-5)
        got = jax.grad(lambda x: jax.vmap(f, (None, 0))(x, KEYS).sum())(X)
        np.testing.assert_allclose(got, gradients.sum(0), rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("f", [rest, taken, one_of_three, cond_in_a_loop], ids=lambda f: f.__name__)
def test_lanes_that_are_not_idle_fail(f: Callable[..., Any]) -> None:
    for keys in ([-1, 3], [3, -2], [-3, -4]):
        with pytest.raises(Exception, match=r"is out of bounds for axis 0 of `x`|outside"):
            jax.block_until_ready(jax.vmap(f, (None, 0))(X, np.array(keys, np.int32)))


@pytest.mark.full
def test_a_loop_that_no_lane_differs_in() -> None:
    """JAX asks for the rule of such loops as well: it ended in a primitive that nothing lowers."""
    f = lambda y: rest(X, 5) + rest_by_steps(X, 3) + y  # noqa: E731
    np.testing.assert_array_equal(jax.vmap(f)(X), f(0.0) + X)


def test_loops_without_such_calls_are_those_of_jax() -> None:
    @qd.jit
    def double(x: Any) -> Any:
        for i in qd.range(x.shape[0]):
            x[i] = x[i] * 2
        return x

    def f(k: Any) -> Any:
        s = lax.while_loop(lambda s: s[0] < 8, lambda s: (s[0] + 1, double(s[1])), (k, jnp.ones(2)))
        return lax.cond(k < 3, lambda: jnp.sin(s[1]), lambda: jnp.cos(s[1]))

    text = str(jax.make_jaxpr(jax.vmap(f))(KEYS))
    assert "argmax" not in text
    assert "argmax" in str(jax.make_jaxpr(jax.vmap(rest, (None, 0)))(X, KEYS))
