"""Second derivatives by rules of users that are no derivatives of what they return: JAX differentiates the value that a
rule returns, and so does a program of which a derivative was asked before."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import GradientError

X = np.array([0.3, 1.7, -2.2], np.float32)


def by_rule(returns: str) -> Any:
    """A rounding whose derivative is that of the identity; the rule returns a formula, or the function's value."""
    if returns == "rule for reverse mode":
        rounded = jax.custom_vjp(lambda x: jnp.round(x))
        rounded.defvjp(lambda x: (jnp.round(x), None), lambda _, ct: (ct,))
        return rounded
    rounded = jax.custom_jvp(lambda x: jnp.round(x))
    call = rounded if returns == "value" else jnp.round
    rounded.defjvp(lambda primals, tangents: (call(*primals), tangents[0]))
    return rounded


def looped(lane: Any) -> Any:
    @qd.jit
    def body(x):
        for i in qd.range(x.shape[0]):
            x[i] = lane(x[i])
        return x

    return body


def along(f: Any) -> Any:
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


SECOND = {
    "forward over reverse": lambda f: along(jax.grad(lambda x: f(x).sum())),
    "forward over forward": lambda f: along(along(f)),
    "reverse over forward": lambda f: jax.grad(lambda x: along(f)(x).sum()),
    "lanes of it": lambda f: jax.vmap(along(jax.grad(lambda x: f(x[None])[0]))),
    "third": lambda f: along(along(jax.grad(lambda x: f(x).sum()))),
}


@pytest.mark.parametrize("returns", ["formula", "value", "rule for reverse mode"])
@pytest.mark.parametrize("order", SECOND)
@pytest.mark.parametrize("around", [qd.vmap, looped])
def test_values_that_rules_return_are_differentiated(returns, order, around):
    if returns == "rule for reverse mode" and order in ("forward over forward", "reverse over forward"):
        pytest.skip("JAX has no forward mode of it")

    def lane(x: Any) -> Any:
        return by_rule(returns)(1.3 * x) * x

    f, expected = around(lane), jax.vmap(lane)
    found = SECOND[order](lambda x: jnp.sin(f(x)))(X)
    np.testing.assert_allclose(found, SECOND[order](lambda x: jnp.sin(expected(x)))(X), rtol=3e-5)


def test_a_derivative_along_some_arguments_says_nothing_of_the_others():
    @jax.custom_jvp
    def product(x, y):
        return jnp.sin(x) * y

    product.defjvp(lambda p, t: (jnp.sin(p[0]) * p[1], 5.0 * t[0] + p[0] * t[1]))

    def second(f: Any) -> Any:
        first = lambda x, y: along(lambda x: jnp.sin(f(x, y)))(x)  # noqa: E731
        return jax.jvp(first, (X, 2 * X), (np.ones_like(X), -X))[1]

    np.testing.assert_allclose(second(qd.vmap(product)), second(jax.vmap(product)), rtol=3e-5)


def test_reverse_over_reverse_stays_refused():
    f = qd.vmap(by_rule("formula"))
    with pytest.raises(GradientError, match="symmetric"):
        jax.grad(lambda x: jnp.sin(jax.grad(lambda x: jnp.sin(f(x)).sum())(x)).sum())(X)
