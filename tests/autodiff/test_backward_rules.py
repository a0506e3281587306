"""Backward functions of `jax.custom_vjp` that are not linear in the cotangent: lanes and bodies against JAX."""

import re
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import GradientError

BACKWARD = {
    "linear": lambda x, g: g * jnp.cos(x),
    "clipped": lambda x, g: jnp.clip(g, -0.5, 0.5),
    "clipped product": lambda x, g: jnp.clip(g * x, -0.5, 0.5),
    "sign": lambda x, g: jnp.sign(g) * x,
    "square": lambda x, g: g * g * x + g,
    "by its norm": lambda x, g: g * x / jnp.sqrt(1 + jnp.sum(g * g)),
}


def ruled(name):
    """A function of one value or vector; the rule is no derivative of it."""

    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (BACKWARD[name](x, g),))
    return f


def of_tuples(name):
    """A function of a pair, an integer and a vector; two results, one of them an integer as well."""

    def value(pair, count, v):
        return {"a": pair[0] * v.sum(), "b": pair[1] + v}, count + 1

    f = jax.custom_vjp(value)

    def forward(pair, count, v):
        return value(pair, count, v), (pair, count, v)

    def backward(kept, g):
        (p, q), count, v = kept
        bar, _ = g
        back = BACKWARD[name]
        return (back(q, bar["a"]) * count, back(p, bar["b"].sum())), None, back(v, bar["b"] * p) + bar["a"]

    f.defvjp(forward, backward)
    return f


def lanes(name):
    f, pair = ruled(name), of_tuples(name)

    def of_pair(x, y):
        found, count = pair((x, y), 3, jnp.stack([x * y, y, x]))
        return found["a"] + (found["b"] ** 2).sum() * count

    return {
        "squared": lambda x, y: f(x) ** 2 * y,
        "inside and outside": lambda x, y: f(x * y) * x + f(jnp.cos(f(x))),
        "of one argument alone": lambda x, y: y * f(x),
        "loop": lambda x, y: lax.fori_loop(0, 3, lambda i, s: f(s * y) * x + s, x),
        "scan": lambda x, y: lax.scan(lambda c, t: (f(c * t) + c, f(c)), x, jnp.stack([x, y, y]))[1].sum(),
        "scan over what stays": lambda x, y: y * lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0],
        "cond": lambda x, y: lax.cond(x > 0, lambda x: f(x) ** 2 * y, lambda x: y * f(x), x),
        "vector": lambda x, y: (f(jnp.stack([x, y, x * y])) ** 2).sum(),
        "rule in a rule": lambda x, y: safe(f(x)) * f(safe(y)),
        "tuples": of_pair,
        "checkpoint": lambda x, y: jax.checkpoint(lambda x: f(x) ** 2)(x) * y,
    }


@jax.custom_jvp
def safe(x):
    return jnp.sqrt(jnp.abs(x))


safe.defjvp(lambda p, t: (safe(*p), 0.7 * t[0] * jnp.cos(p[0])))

CASES = sorted(lanes("linear"))
X, Y = np.array([0.1, 1.0, -0.2, -3.0, 0.6]), np.array([0.7, -0.3, 1.2, 0.1, 0.9])
DX, DY = np.array([1.0, -2.0, 0.5, 0.3, 0.0]), np.array([0.4, 1.0, -1.0, 0.0, 2.0])
BARS = np.array([0.3, -0.2, 1.1, 0.25, -2.0]), np.array([1.0, 0.0, -1.0, 0.5, 0.2])


def orders(g, wrt):
    """Adjoints, and their first and second derivatives along arguments and cotangents, all of them and some."""
    back = lambda x, y, bar: jax.vjp(g, x, y)[1](bar)[wrt]  # noqa: E731
    at, along = (tuple(map(jnp.asarray, some)) for some in ((X, Y, BARS[0]), (DX, DY, BARS[1])))
    x, y, bar = at
    first = lambda *at: jax.jvp(back, at, along)[1]  # noqa: E731
    return {
        "adjoint": back(*at),
        "along all": first(*at),
        "along the cotangent": jax.jvp(lambda bar: back(x, y, bar), at[2:], along[2:])[1],
        "along the other": jax.jvp(lambda y: back(x, y, bar), (y,), along[1:2])[1],
        "jacobian": jax.jacfwd(back, (0, 1, 2))(*at),
        "twice": jax.jvp(first, at, (along[1], along[2], along[0]))[1],
    }


def compare(ours, jaxs, wrt):
    got, want = (jax.jit(lambda g=g: orders(g, wrt))() for g in (ours, jaxs))
    for name, value in want.items():
        for a, b in zip(jax.tree.leaves(got[name]), jax.tree.leaves(value), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.sample(full=8)
@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, marks=() if not seventh else pytest.mark.full if seventh < 3 else pytest.mark.slow)
        for k, name in enumerate(BACKWARD)
        for m, case in enumerate(CASES)
        for seventh in [(k + m) % 7]
    ],
)
def test_lanes(name, case):
    """The tangent of such a rule was taken to be the rule of a tangent."""
    lane = lanes(name)[case]
    with jax.enable_x64(True):
        compare(qd.vmap(lane), jax.vmap(lane), CASES.index(case) % 2)


def in_two_loops(f):
    """The same function as a body with memory between its loops, and of arrays."""

    @qd.jit
    def body(x):
        t, total = qd.zeros(x.shape, x.dtype), qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0]):
            t[i] = f(x[i]) * x[i]
        for i in qd.range(x.shape[0]):
            total[()] += t[i] * t[(i + 1) % x.shape[0]]
        for i in qd.range(x.shape[0]):
            t[i] = f(total[()] * t[i])
        return t

    def of_arrays(x):
        t = jax.vmap(f)(x) * x
        return jax.vmap(f)((t * jnp.roll(t, -1)).sum() * t)

    return body, of_arrays


loss = lambda g: lambda x: (g(x) ** 2).sum()  # noqa: E731
AT, ALONG = (jnp.array([0.1, 1.0, -0.2, -0.7]), jnp.array([0.7, -0.3, 1.2, 0.1]))
ROWS, TURNED = jnp.stack([AT, ALONG]), jnp.stack([ALONG, AT * ALONG])
along_all = lambda g: lambda x, w: jax.jvp(jax.grad(loss(g)), (x,), (w,))[1]  # noqa: E731
NESTS = {
    "gradient": lambda g: jax.grad(loss(g))(AT),
    "hessian": lambda g: jax.hessian(loss(g))(AT),
    "forward over reverse": lambda g: along_all(g)(AT, ALONG),
    "over a batch of gradients": lambda g: jax.jvp(jax.vmap(jax.value_and_grad(loss(g))), (ROWS,), (TURNED,))[1],
    "over the gradient of a batch": lambda g: along_all(jax.vmap(g))(ROWS, TURNED),
    "batch of all": lambda g: jax.vmap(along_all(g))(ROWS, TURNED),
    "third": lambda g: jax.jvp(lambda x: along_all(g)(x, ALONG), (AT,), (ALONG,))[1],
    "checkpoint": lambda g: along_all(jax.checkpoint(g))(AT, ALONG),
}


@pytest.mark.sample(full=4)
@pytest.mark.parametrize(
    "name", [n if n in ("linear", "clipped product") else pytest.param(n, marks=pytest.mark.full) for n in BACKWARD]
)
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.full
def test_bodies(name, compiled):
    """What a function is forward where its adjoints go by a rule are the steps of the rule, not of the function."""
    ours, jaxs = in_two_loops(ruled(name))
    for nest, derivative in NESTS.items():
        got = jax.jit(derivative, static_argnums=0)(ours) if compiled else derivative(ours)
        want = derivative(jaxs)
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=3e-4, atol=2e-5, err_msg=nest)


@pytest.mark.full
def test_forward_steps_of_a_rule():
    """The forward function of a rule is differentiated once its adjoints were asked for, as JAX does it."""

    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    def forward(x):
        return jnp.sin(lax.stop_gradient(x)) + 3 * (x - lax.stop_gradient(x)), x

    f.defvjp(forward, lambda x, g: (g * x,))
    x, t = jnp.array([0.3, 2.0]), jnp.array([1.0, -1.0])
    for batched in (qd.vmap, jax.vmap):
        value, slope = jax.jvp(jax.grad(lambda x, batched=batched: (batched(f)(x) ** 2).sum()), (x,), (t,))
        np.testing.assert_allclose(value, 2 * jnp.sin(x) * x, rtol=1e-6)
        np.testing.assert_allclose(slope, 2 * (3 * x + jnp.sin(x)) * t, rtol=1e-6)


def test_refusals():
    """Forward mode alone, and reverse mode over reverse mode, are refused by name."""
    f, x = ruled("clipped"), jnp.array([0.3, 2.0])
    with pytest.raises(GradientError, match=r"`f` has a rule for reverse mode alone"):
        jax.jvp(qd.vmap(f), (x,), (x,))
    once = jax.grad(lambda x: (qd.vmap(f)(x) ** 2).sum())
    for again in (jax.grad, jax.jacrev):
        with pytest.raises(GradientError, match=r"symmetric.*`f`"):
            again(lambda x: once(x).sum())(x)


NOT_LINEAR = {
    "select": lambda x, t: jnp.where(t > 0, t, 2 * t),
    "equal to zero": lambda x, t: t * jnp.where(t == 0, 2.0, 3.0),
    "abs": lambda x, t: jnp.abs(t),
    "clip": lambda x, t: jnp.clip(t, -0.5, 0.5),
    "sign": lambda x, t: jnp.sign(t) * x,
    "square": lambda x, t: t * t,
    "branch": lambda x, t: lax.cond(t > 0, lambda t: t, lambda t: 2 * t, t),
    "floor": lambda x, t: jnp.floor(t),
    "rounded part": lambda x, t: t + jnp.round(t * 0.1),
    "integers": lambda x, t: t * (t.astype(jnp.int32) + 1),
    "norm": lambda x, t: t / jnp.sqrt(1 + t * t),
}


@pytest.mark.full
@pytest.mark.parametrize("name", NOT_LINEAR)
@pytest.mark.parametrize("is_inside", [False, True], ids=["outside", "inside"])
@pytest.mark.sample(2)
def test_tangents_that_are_not_linear_are_not_transposed(name, is_inside):
    """What has no slope counted as that of tangents of zero, silently: JAX has no transpose of it either."""

    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    f.defjvp(lambda p, t: (jnp.sin(p[0]), NOT_LINEAR[name](p[0], t[0])))
    x = jnp.array([0.3, -0.7])

    def gradient(batched):
        return batched(jax.grad(f))(x) if is_inside else jax.grad(lambda x: batched(f)(x).sum())(x)

    refusals = (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError)
    with pytest.raises(qd.QdError if not is_inside else (qd.QdError, *refusals)):
        gradient(qd.vmap)
    with pytest.raises(refusals):
        gradient(jax.vmap)
    _, ours = jax.jvp(qd.vmap(f), (x,), (2 * x,))
    np.testing.assert_allclose(ours, jax.jvp(jax.vmap(f), (x,), (2 * x,))[1], rtol=1e-6)


LINEAR = {
    "cosine": lambda x, t: jnp.cos(x) * t,
    "select by x": lambda x, t: jnp.where(x > 0, t, 2 * t),
    "loop": lambda x, t: lax.fori_loop(0, 3, lambda _, s: s * x, t),
    "branch by x": lambda x, t: lax.cond(x > 0, lambda t: t * x, lambda t: 2 * t, t),
    "zeros": lambda x, t: jnp.zeros_like(t),
    "stopped": lambda x, t: lax.stop_gradient(x) * t / 3,
    "part of a row": lambda x, t: jnp.roll(jnp.stack([t, 2 * t * x, -t]), 1)[1],
    "extreme": lambda x, t: jax.jvp(lambda x: jnp.max(jnp.stack([x, x * x])), (x,), (t,))[1],
    "solved": lambda x, t: lax.custom_linear_solve(
        lambda v: (2 + x * x) * v,
        t,
        lambda m, b: lax.while_loop(lambda s: jnp.abs(m(s) - b) > 1e-6, lambda s: s - 0.25 * (m(s) - b), b),
        symmetric=True,
    ),
}
NOT_ZERO_AT_ZERO = {"plus 1": lambda x, t: t + 1, "plus x": lambda x, t: t + x, "of x alone": lambda x, t: x * x}
TANGENTS = {**NOT_LINEAR, **NOT_ZERO_AT_ZERO, **LINEAR}
DIRECTIONS = {"fixed": lambda x: jnp.array([1, -0.5, 0.7]), "moving": lambda x: x**3 + 2 * x}


def along(f, direction):
    return lambda x: jax.jvp(f, (x,), (direction(x),))[1]


TWICE = {
    "jvp": lambda f, d: along(along(f, d), d),
    "jacfwd": lambda f, d: jax.jacfwd(along(f, d)),
    "third": lambda f, d: along(along(along(f, d), d), d),
    "of linearize": lambda f, d: along(lambda x: jax.linearize(f, x)[1](d(x)), d),
    "over reverse": lambda f, d: along(
        lambda v: jax.grad(lambda x: jax.jvp(f, (x,), (d(v),))[1].sum())(jnp.array([0.3, -0.7, 1.2])), d
    ),
    "hessian": lambda f, d: jax.jacfwd(jax.jacfwd(f)),
}


MOVING = [
    pytest.param(name, moves, is_body, order, marks=pytest.mark.slow if k % 5 else ())
    for k, (name, moves, is_body, order) in enumerate(product(TANGENTS, DIRECTIONS, (False, True), TWICE))
]


@pytest.mark.full
@pytest.mark.parametrize(("name", "moves", "is_body", "order"), MOVING)
@pytest.mark.sample(6, full=4)
def test_directions_that_move(name, moves, is_body, order):
    """The derivative by a direction was that of a linear rule, silently: now any other is refused there."""

    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    f.defjvp(lambda p, t: (jnp.sin(p[0]), TANGENTS[name](p[0], t[0])))

    @qd.jit
    def body(x):
        out = qd.zeros(x.shape[0])
        for i in qd.range(x.shape[0]):
            out[i] = f(x[i])
        return out

    x = jnp.array([0.3, -0.7, 1.2])
    found, want = (TWICE[order](f, DIRECTIONS[moves]) for f in (body if is_body else qd.vmap(f), jax.vmap(f)))
    got, refusal = None, ""
    try:
        got = (jax.jit(found) if is_body else found)(x)
    except GradientError as error:
        refusal = str(error)
    if got is None:
        assert moves == "moving"
        assert name not in LINEAR
        assert re.search(r"(?s)jax\.jvp by its direction .*got .* in that of `f`\n.*help:", refusal)
    elif (name, order) != ("of x alone", "of linearize"):  # JAX leaves out there what no direction changes
        np.testing.assert_allclose(got, want(x), rtol=1e-4, atol=1e-5)
