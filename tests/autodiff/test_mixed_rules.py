"""Functions with a rule for reverse mode beside, around or inside of one for forward mode that need not be linear.

A derivative of their adjoints is JAX's or refused. Programs are drawn of rules, of where one calls the other, of
directions and cotangents that are fixed or depend on the variable, and of orders.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import GradientError

from .test_backward_rules import BACKWARD, LINEAR, TANGENTS, along

X = np.array([0.3, -0.7, 1.2])
DIRECTIONS = {"fixed": lambda x: jnp.array([1, -0.5, 0.7]), "moving": lambda x: x**3 + 2 * x, "sine": jnp.sin}
COTANGENTS = {"fixed bar": lambda x: jnp.ones(3), "moving bar": lambda x: x * x - 1}


def twice(back, d):
    return along(along(back, d), d)


ORDERS = {
    "once": lambda back, g, d: along(back, d),
    "twice": lambda back, g, d: twice(back, d),
    "thrice": lambda back, g, d: along(twice(back, d), d),
    "jacobian": lambda back, g, d: jax.jacfwd(along(back, d)),
    "by the direction": lambda back, g, d: lambda x: jax.jvp(lambda v: jax.jvp(back, (x,), (v,))[1], (d(x),), (x,))[1],
    "of a loss": lambda back, g, d: twice(jax.grad(lambda x: (g(x) ** 2).sum()), d),
}


def lane(tangent, back, place):
    """A lane with a rule for tangents `s` and one for adjoints `f`."""

    @jax.custom_jvp
    def s(x):
        return jnp.sin(x)

    s.defjvp(lambda p, t: (jnp.sin(p[0]), TANGENTS[tangent](p[0], t[0])))

    @jax.custom_vjp
    def f(x):
        return jnp.cos(x) * x

    def backward(kept, g):
        match place:
            case "of what is kept":
                kept = s(kept)
            case "of the cotangent":
                g = s(g)
            case "of the adjoint":
                return (s(BACKWARD[back](kept, g)),)
        return (BACKWARD[back](kept, g),)

    f.defvjp(lambda x: (f(x), s(x) if place == "forward" else x), backward)
    return {
        "around": lambda x: s(f(x)),
        "inside": lambda x: f(s(x)),
        "beside": lambda x: f(x) * 2 + s(lax.stop_gradient(x)) * x,
        "in a branch": lambda x: f(x) + jnp.where(x > 100, s(x), x),
    }.get(place, f)


PLACES = (
    "forward",
    "of what is kept",
    "of the cotangent",
    "of the adjoint",
    "around",
    "inside",
    "beside",
    "in a branch",
)
ALL = list(itertools.product(TANGENTS, BACKWARD, PLACES, DIRECTIONS, COTANGENTS, ORDERS))
KNOWN = [
    ("plus x", "clipped product", "of the cotangent", "fixed", "fixed bar", "once"),
    ("plus x", "linear", "forward", "fixed", "fixed bar", "by the direction"),
    ("norm", "by its norm", "forward", "moving", "moving bar", "twice"),
    ("square", "by its norm", "of the adjoint", "fixed", "moving bar", "thrice"),
    ("cosine", "by its norm", "forward", "moving", "moving bar", "thrice"),
    ("extreme", "square", "in a branch", "moving", "fixed bar", "thrice"),
]
"""Wrong once, and two that must not be refused."""


def check(tangent, back, place, direction, bar, order):
    def found(batched):
        g = batched(lane(tangent, back, place))
        return ORDERS[order](lambda x: jax.vjp(g, x)[1](COTANGENTS[bar](x))[0], g, DIRECTIONS[direction])(jnp.array(X))

    try:
        want = found(jax.vmap)
    except Exception as error:
        want = error
    try:
        got = found(qd.vmap)
    except GradientError:
        if tangent in LINEAR and not isinstance(want, Exception):
            raise
        return
    if not isinstance(want, Exception):
        rtol = 1e-4 if tangent == "solved" else 1e-8  # its solver stops at 1e-6
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("case", KNOWN, ids=lambda case: ", ".join(case))
@pytest.mark.every_case
def test_known(case):
    with jax.enable_x64(True):
        check(*case)


@pytest.mark.parametrize(
    "seed", [pytest.param(0, marks=pytest.mark.full), *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 30))]
)
def test_drawn(seed):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        for k in rng.choice(len(ALL), 8 if seed == 0 else 100, replace=False):
            check(*ALL[k])
