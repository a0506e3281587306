# ruff: noqa: B023 - conditions of loops are asked while they are traced
"""Gradients of loops that change arrays: what their loads found is kept, not the arrays; also loads in conditions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import GradientError

C = np.random.default_rng(0).uniform(0.5, 1.5, (40, 8))


def recursion(c):
    """A table whose entries are made of earlier ones."""
    table = jnp.zeros(65, c.dtype).at[0].set(c[0])

    def entry(k, t):
        return t.at[k].set(jnp.sin(t[k - 1]) * c[k % 8] + 0.3 * t[k // 2])

    table = lax.fori_loop(1, 65, entry, table)
    return table[64] + table[32]


def blending(c):
    """Pixels that are blended many times, and summed up behind."""

    def blend(k, pixels):
        x, at = jnp.sin(c[k % 8] * (k + 1)), (k * 7) % 24
        return pixels.at[at].set(pixels[at] * 0.7 + jnp.exp(-x * x) * pixels[(at + 5) % 24] + 0.1 * x)

    pixels = lax.fori_loop(0, 40, blend, jnp.zeros(24, c.dtype))
    return jnp.sum(pixels * pixels)


def smoothing(c):
    """A row that is swept over in place, several times."""

    def sweep(_, row):
        return lax.fori_loop(1, 31, lambda k, r: r.at[k].set(jnp.tanh(r[k - 1] * r[k] + r[k + 1])), row)

    return jnp.sum(lax.fori_loop(0, 5, sweep, jnp.tile(c, 4)) ** 2)


def early(c):
    """Loops in front of the first store, of the last, and behind it."""
    row = jnp.tile(c, 4)
    first = lax.fori_loop(0, 32, lambda k, s: s * jnp.cos(row[k]) + row[k], c[0])
    row = lax.fori_loop(1, 32, lambda k, r: r.at[k].set(r[k] * jnp.sin(r[k - 1]) + first), row)
    last = lax.fori_loop(0, 32, lambda k, s: s * jnp.cos(row[k]) + row[31 - k], first)
    return last * row[3]


LANES = {f.__name__: f for f in (recursion, blending, smoothing, early)}


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("name", LANES)
def test_gradients_are_those_of_jax(name):
    f = LANES[name]
    got = jax.grad(lambda c: qd.vmap(f)(c).sum())(C)
    np.testing.assert_allclose(got, jax.jit(jax.vmap(jax.grad(f)))(C), rtol=1e-10, atol=1e-12)


@pytest.mark.cpu
def test_an_iteration_reads_what_the_one_before_stored():
    @qd.jit
    def pairs(x):
        y = qd.copy(x)
        for i in qd.range(2):
            for k in qd.range(9):
                a = y[2 * i + (k + 1) % 2]
                y[2 * i + k % 2] = jnp.sin(a) * a + 0.5
        return y

    qd.check_grads(pairs, (C[0, :4],))


@pytest.mark.parametrize("target", [None, "sm_90"])
@pytest.mark.parametrize(("name", "most"), [("recursion", 1500), ("blending", 1000), ("smoothing", 3500)])
def test_bytes_of_a_lane(name, most, target):
    f = LANES[name]
    more = {} if target is None else {"target": target}
    low = qd.jit(jax.grad(lambda c: qd.vmap(f)(c).sum())).lower(C.astype(np.float32), **more)
    assert low.memory_analysis()["stack_per_lane"] <= most


def until(condition):
    """Loops whose condition loads memory that they change, in a loop."""

    @qd.jit
    def f(x, p):
        out = qd.empty(p.shape, x.dtype)
        for i in qd.range(p.shape[0]):
            s = qd.local(jnp.asarray(1.0, x.dtype))
            for k in qd.range(3):
                c = qd.local(0)
                for _ in qd.while_(lambda: (c.value < 5) & condition(x, 8 * p[i], c.value, k)):
                    at = 8 * p[i] + c.value
                    s.value = s.value * jnp.cos(x[at + 1]) + x[at]
                    x[at] = jnp.sin(x[at]) + 0.4
                    c += 1
                s.value = s.value * x[8 * p[i] + k]
            out[i] = s.value
        return out

    p = np.arange(4, dtype=np.int32)[::-1].copy()
    return lambda x: f(x, p).sum()


@pytest.mark.full
@pytest.mark.cpu
def test_conditions_that_load_what_the_loop_changes():
    x = np.random.default_rng(0).uniform(0, 1, 40)
    qd.check_grads(until(lambda x, row, c, k: x[row + c] < 0.5 + 0.3 * k), (x,))


def test_conditions_that_load_in_a_branch_are_refused():
    def condition(x, row, c, k):
        return lax.fori_loop(0, k, lambda j, s: s + x[row + c + j], 0.0) < 2

    with pytest.raises(GradientError, match=r"(?s)each time that a condition .* is asked, got one .*help: load it"):
        qd.jit(jax.grad(until(condition))).lower(np.ones(40))
