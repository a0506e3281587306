"""Functions with a derivative rule that hold loops of this package: the rule is asked, or refused by name."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import GradientError

X = np.arange(3, dtype=np.float32)


def halved(x: Any) -> Any:
    """0.125 x, with a loop and a cell."""
    c = qd.local(x)
    for _ in qd.range(3):
        c.value = c.value * 0.5
    return c.value


def in_jax(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda _, c: c * 0.5, x)


def stored(x: Any) -> Any:
    out = qd.copy(x)
    for i in qd.range(3):
        out[i] = out[i] * 0.125
    return out[...]


def with_rule(function: Any, kind: str) -> Any:
    """The function with a rule of slope 100."""
    if kind == "jvp":
        ruled = jax.custom_jvp(function)
        ruled.defjvp(lambda primals, tangents: (ruled(*primals), 100.0 * tangents[0]))
        return ruled
    ruled = jax.custom_vjp(function)
    ruled.defvjp(lambda x: (ruled(x), None), lambda _, ct: (100.0 * ct,))
    return ruled


def body_of(lane: Any) -> Any:
    @qd.jit
    def body(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = lane(x[i])
        return out

    return body


CALLS = {
    "loop": lambda f: body_of(f),
    "lanes": lambda f: qd.vmap(f),
    "jit": lambda f: body_of(jax.jit(f)),
    "fori_loop": lambda f: body_of(lambda x: lax.fori_loop(0, 1, lambda _, c: f(c), x)),
    "while_loop": lambda f: qd.vmap(lambda x: lax.while_loop(lambda c: c[0] < 1, lambda c: (1, f(c[1])), (0, x))[1]),
    "cond": lambda f: qd.vmap(lambda x: lax.cond(x > -1, f, lambda x: x, x)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
@pytest.mark.parametrize("where", CALLS)
def test_a_rule_with_loops_of_the_package_is_refused(where, kind):
    f = CALLS[where](with_rule(halved, kind))
    np.testing.assert_array_equal(f(X), X * 0.125)
    with pytest.raises(GradientError, match="the derivative rule of `halved` cannot be asked") as info:
        jax.grad(lambda x: f(x).sum())(X)
    assert info.value.loc is not None
    assert "lax.fori_loop" in info.value.help
    with pytest.raises(GradientError, match="halved"):
        jax.jvp(f, (X,), (X,))


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
@pytest.mark.parametrize("where", CALLS)
def test_the_fix_asks_the_rule(where, kind):
    f = CALLS[where](with_rule(in_jax, kind))
    np.testing.assert_array_equal(f(X), X * 0.125)
    np.testing.assert_array_equal(jax.grad(lambda x: f(x).sum())(X), [100.0] * 3)


@pytest.mark.parametrize("kind", ["jvp", "vjp"])
def test_a_rule_of_whole_arrays(kind):
    f = qd.jit(with_rule(stored, kind))
    np.testing.assert_array_equal(f(X), X * 0.125)
    with pytest.raises(GradientError, match="`stored`"):
        jax.grad(lambda x: f(x).sum())(X)
    around = with_rule(qd.jit(stored), kind)
    np.testing.assert_array_equal(jax.grad(lambda x: around(x).sum())(X), [100.0] * 3)


def test_what_has_no_tangent_is_not_refused():
    ruled = with_rule(halved, "jvp")

    @qd.jit
    def body(x, y):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = ruled(x[i]) * y[i] + ruled(lax.stop_gradient(y[i]))
        return out

    got = jax.grad(lambda y: body(X, y).sum())(jnp.ones(3))
    np.testing.assert_array_equal(got, X * 0.125)
