"""What a `lax.scan` keeps of calls at each step for a gradient: nothing of a large argument that is the same at all."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace import compat

LARGE, STEPS = 1000, 5
X, BIG = jnp.array([0.3, -0.4, 0.5]), jnp.cos(jnp.arange(float(LARGE)))


@qd.jit
def read(x, big):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        for j in qd.range(7):
            out[i] += jnp.sin(x[i] * big[i + 100 * j]) / 7
    return out


@qd.jit
def stored(x, big):
    for i in qd.range(x.shape[0]):
        big[i] = x[i]
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        for j in qd.range(7):
            out[i] += jnp.sin(x[i] * big[(i + 100 * j + 1) % LARGE]) / 7
    return out


@qd.jit
def turned(x, big):
    b = qd.zeros_like(big)
    for k in qd.range(LARGE):
        b[k] = big[LARGE - 1 - k] * x[0]
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        for j in qd.range(7):
            out[i] += jnp.sin(x[i] * b[i + 100 * j]) / 7
    return out


@qd.jit
def doubled(x, big):
    """The derivative reads nothing of either."""
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = 0.5 * x[i] + 0.1 * big[3 * i]
    return out


def by_read(x, big):
    return sum(jnp.sin(x * big[100 * j : 100 * j + 3]) for j in range(7)) / 7


def by_stored(x, big):
    big, i = big.at[:3].set(x), np.arange(3)
    return sum(jnp.sin(x * big[(i + 100 * j + 1) % LARGE]) for j in range(7)) / 7


OURS = {
    "read": (read, by_read),
    "stored": (stored, by_stored),
    "turned": (turned, lambda x, big: by_read(x, big[::-1] * x[0])),
    "doubled": (doubled, lambda x, big: 0.5 * x + 0.1 * big[:9:3]),
}


def through(step, x, big, *, carried=False):
    if carried:
        body = lambda state, _: ((step(*state), state[1]), None)  # noqa: E731
        return jnp.sum(jax.lax.scan(body, (x, big), None, length=STEPS)[0][0] ** 2)
    return jnp.sum(jax.lax.scan(lambda x, _: (step(x, big), None), x, None, length=STEPS)[0] ** 2)


def kept(function, *args) -> int:
    """Returns the elements of results that scans of a function collect from their steps."""

    def found(jaxpr):
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "scan":
                sizes = [v.aval.size for v in eqn.outvars if v.aval.shape[:1] == (STEPS,)]
                yield sum(sizes)
            for inner in compat.inner_jaxprs(eqn):
                yield from found(compat.open_jaxpr(inner))

    return sum(found(jax.make_jaxpr(function)(*args).jaxpr))


@pytest.mark.full
@pytest.mark.parametrize(("name", "carried"), [*((name, False) for name in OURS), ("stored", True)])
@pytest.mark.sample(3)
def test_a_large_argument_is_not_kept_at_each_step(name, carried):
    ours, theirs = OURS[name]
    got = jax.grad(lambda x, big: through(ours, x, big, carried=carried), (0, 1))
    want = jax.grad(lambda x, big: through(theirs, x, big), (0, 1))(X, BIG)
    for a, b in zip(jax.jit(got)(X, BIG), want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert kept(got, X, BIG) < STEPS * LARGE // 10, "a large array is kept at each step"


@pytest.mark.parametrize("name", OURS)
@pytest.mark.slow
def test_other_modes_take_what_they_need(name):
    ours, theirs = OURS[name]
    change = jnp.ones_like(X), jnp.sin(BIG)

    def asked(step):
        loss = lambda x, big: through(step, x, big)  # noqa: E731
        slope = jax.grad(loss, (0, 1))
        several = jax.vmap(lambda x: slope(x, BIG))(jnp.stack([X, 2 * X]))
        return jax.jvp(loss, (X, BIG), change), jax.jvp(slope, (X, BIG), change), several, jax.hessian(loss)(X, BIG)

    got, want = jax.jit(lambda: asked(ours))(), jax.jit(lambda: asked(theirs))()
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)


def test_a_linear_call_is_differentiated_without_its_arguments():
    loss = lambda x, big: jnp.sum(doubled(x, big))  # noqa: E731
    ours = jax.linearize(loss, X, BIG)[1]
    np.testing.assert_allclose(ours(X, BIG), loss(X, BIG), rtol=1e-6)
    np.testing.assert_allclose(jax.linear_transpose(loss, X, BIG)(jnp.float32(1))[0], [0.5] * 3, rtol=1e-6)
