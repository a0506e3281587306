"""Rules of `jax.custom_vjp` for arrays that are too large for registers: backward functions are drawn, against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import GradientError
from qdtrace.trace.importer import backward_rules

LINEAR = {
    "scaled": lambda r, g: g * jnp.cos(r),
    "rolled": lambda r, g: jnp.roll(g, 1) * r,
    "total": lambda r, g: g.sum() * r,
    "loop": lambda r, g: lax.fori_loop(0, 3, lambda i, s: s * r * 0.5, g),
    "scan": lambda r, g: lax.scan(lambda c, t: (c + t[0] * t[1], c), 0.0, (g, r))[1],
    "select": lambda r, g: jnp.where(r > 0, g, 2 * g),
    "branch": lambda r, g: lax.cond(r[0] > 0, lambda g: g + jnp.roll(g, 2), lambda g: 3 * g, g),
    "running": lambda r, g: jnp.cumsum(g) * r,
    "quotient": lambda r, g: g / (2 + jnp.sum(r * r)),
    "updates": lambda r, g: jnp.zeros_like(g).at[jnp.arange(0, g.size, 2)].add(g[: (g.size + 1) // 2]),
    "padded": lambda r, g: jnp.concatenate([jnp.zeros(3), g[3:]]),
    "compiled": lambda r, g: jax.jit(lambda g: g * r - jnp.flip(g))(g),
    "computed again": lambda r, g: jax.checkpoint(lambda g: g * jnp.sin(r))(g),
}
OTHERS = {
    "clipped": lambda r, g: jnp.clip(g, -0.5, 0.5),
    "plus 1": lambda r, g: g + 1,
    "plus what is kept": lambda r, g: g - r,
    "from 1": lambda r, g: lax.fori_loop(0, 2, lambda i, s: s * 0.5 + g, jnp.ones_like(g)),
    "constant": lambda r, g: jnp.ones_like(g),
    "whole": lambda r, g: g.astype(int).astype(g.dtype),
    "sign": lambda r, g: jnp.sign(g),
    "by its norm": lambda r, g: g / jnp.sqrt(1 + jnp.sum(g * g)),
    "one in front": lambda r, g: jnp.concatenate([jnp.ones(1), g[1:]]),
    "branch with a number": lambda r, g: lax.cond(r[0] > 0, lambda g: g, lambda g: r, g),
}


def ruled(*backward):
    @jax.custom_vjp
    def f(x):
        return jnp.sin(x)

    def back(r, g):
        for step in backward:
            g = step(r, g)
        return (g,)

    f.defvjp(lambda x: (jnp.sin(x), x), back)
    return f


LANES = {
    "once": lambda f: lambda x: (f(x * x) * x).sum(),
    "loop": lambda f: lambda x: lax.fori_loop(0, 2, lambda i, s: f(s * x) + s, x).sum(),
    "scan": lambda f: lambda x: lax.scan(lambda c, t: (f(c * t), c[0]), x, jnp.stack([x, x / 2]))[0].sum(),
    "while": lambda f: lambda x: lax.fori_loop(0, 1 + (x[0] > 9), lambda i, s: f(s * x), x).sum(),
    "branch": lambda f: lambda x: lax.cond(x[0] > 0, lambda x: f(x) * x, lambda x: f(f(x)), x).sum(),
}
UNROLLED = {"while": lambda f: lambda x: f(x * x).sum()}
"""What JAX can differentiate in place of a lane."""


def body_of(lane):
    @qd.jit
    def body(x):
        out = qd.zeros(x.shape[0], x.dtype)
        for i in qd.range(x.shape[0]):
            out[i] = lane(x[i])
        return out

    return body


def derivative(g, order, x):
    adjoint = jax.grad(lambda x: (g(x) ** 2).sum())
    return adjoint(x) if order == 1 else jax.jvp(adjoint, (x,), (x[::-1] / 4,))[1]


def check(steps, lane, size, order=1, is_body=False):
    f = ruled(*({**LINEAR, **OTHERS}[s] for s in steps))
    x = jnp.asarray(np.random.default_rng(size).uniform(-1.2, 1.2, (2, size)))
    ours = LANES[lane](f)
    batched = body_of(ours) if is_body else qd.vmap(ours)
    if any(s in OTHERS for s in steps):
        with pytest.raises(
            GradientError, match=r"`f` has a jax\.custom_vjp rule for arrays .* linear in the cotangents"
        ):
            derivative(batched, order, x)
        return
    want = derivative(jax.vmap(UNROLLED.get(lane, LANES[lane])(f)), order, x)
    np.testing.assert_allclose(derivative(batched, order, x), want, rtol=1e-7, atol=1e-7 * (1 + jnp.abs(want).max()))


@pytest.fixture
def small(monkeypatch):
    """Few numbers are too many: what is asked is how rules go on, not how long large arrays take."""
    monkeypatch.setattr(backward_rules, "MOST", 16)
    with jax.enable_x64(True):
        yield


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("step", [*LINEAR, *OTHERS])
@pytest.mark.sample(4, full=2)
def test_each(step):
    check([step], "once", 40)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("size", [40, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.full
def test_lanes(lane, size):
    check(["rolled", "select"], lane, size, 2 if lane == "loop" else 1)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.slow
def test_drawn(seed):
    rng = np.random.default_rng(seed)
    for _ in range(25):
        steps = [str(s) for s in rng.choice([*LINEAR, *(OTHERS if rng.random() < 0.2 else LINEAR)], rng.integers(1, 4))]
        lane, size = str(rng.choice([*LANES])), int(rng.choice([17, 40, 257, 300]))
        check(steps, lane, size, int(rng.choice([1, 2])), rng.random() < 0.3)


@pytest.mark.usefixtures("small")
def test_what_the_refusal_advises():
    lane = LANES["once"](ruled(OTHERS["clipped"]))
    x = jnp.linspace(-1, 1, 80).reshape(2, 40)
    np.testing.assert_allclose(qd.vmap(jax.grad(lane))(x), jax.vmap(jax.grad(lane))(x), rtol=1e-9, atol=1e-9)


@pytest.mark.full
def test_more_than_four_thousand_elements():
    """As many as solvers of larger states keep; complex numbers, trees and integers among them."""

    @jax.custom_vjp
    def f(z, k, v):
        return {"a": jnp.sin(z), "n": k + 1, "b": (v * v).sum()}

    def backward(kept, g):
        z, _, v = kept
        return g["a"] * jnp.cos(z) * 1j + jnp.roll(g["a"], 2), None, g["b"] * v + g["a"].real

    f.defvjp(lambda z, k, v: (f(z, k, v), (z, k, v)), backward)

    def lane(z, v):
        found = f(z * z, 3, v)
        return (found["a"] * z).sum().real * found["b"] / 4096 + found["n"]

    rng = np.random.default_rng(1)
    z, v = jnp.asarray(rng.normal(size=(2, 4100)) + 1j, jnp.complex64), jnp.asarray(rng.normal(size=(2, 4100)), "f4")
    got, want = (jax.grad(lambda z, v, b=b: b(lane)(z, v).sum(), (0, 1))(z, v) for b in (qd.vmap, jax.vmap))
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
