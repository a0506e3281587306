# ruff: noqa: B023 - conditions of loops are asked while they are traced
"""Reverse mode of loops at every number of iterations where a stack fills, thins, or is not used at all.

Lanes have numbers of their own, so one call tests all of them. Results are elementwise, so JAX's forward mode along
ones gives each lane's derivative.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.autodiff.loops import trip_counts
from qdtrace.errors import GradientError
from tests.autodiff.lanes import advance, each
from tests.autodiff.machines import MACHINES, programs_for

COUNTS = np.array([0, 1, 2, 3, 7, 31, 32, 33, 34, 62, 63, 64, 65, 95, 96, 97, 126, 127, 128, 129, 252, 253, 254, 511,
                   1023, 1025, 3000], np.int32)  # fmt: skip
X = np.linspace(0.2, 1.4, len(COUNTS))


@pytest.fixture(autouse=True, params=["every state", "segments", "short segments", "segments in short stacks"])
def machine(request):
    """Programs of every kind of machine."""
    with programs_for(MACHINES[request.param]):
        yield


def agrees(ours, theirs, *more, rtol=1e-9):
    """Equal derivatives of `ours(x, n)`, over lanes, and of `theirs(x, n)`, of one lane."""
    want = jax.jit(lambda x, n: jax.jvp(lambda x: jax.vmap(theirs)(x, n), (x,), (jnp.ones_like(x),))[1])(X, COUNTS)
    got = jax.grad(lambda x: ours(x, COUNTS, *more).sum())(X)
    np.testing.assert_allclose(got, want, rtol=rtol)


@pytest.mark.full
def test_while():
    @each
    def ours(i, x, n):
        a, k = qd.local(x[i]), qd.local(0)
        for _ in qd.while_(lambda: k.value < n[i]):
            a.value = advance(a.value, k.value, x[i])
            k += 1
        return a.value

    agrees(ours, lambda x, n: jax.lax.fori_loop(0, n, lambda k, a: advance(a, k, x), x))


@pytest.mark.sample(full=5)
@pytest.mark.full
@pytest.mark.parametrize("step", [1, -1, 3, -4, 1000, -1000])
def test_for_with_bounds_of_data(step):
    @each
    def ours(i, x, n):
        a = qd.local(x[i])
        start = 5 if step > 0 else 5 + n[i]
        for k in qd.range(start, 10 + n[i] - start, step):
            a.value = advance(a.value, k, x[i])
        return a.value

    def theirs(x, n):
        start = 5 if step > 0 else 5 + n
        count = (n + abs(step) - 1) // abs(step)
        return jax.lax.fori_loop(0, count, lambda t, a: advance(a, start + step * t, x), x)

    agrees(ours, theirs)


@pytest.mark.full
def test_array_in_the_state():
    """States are a counter and an array that each iteration changes one element of."""

    @each
    def ours(i, x, n):
        a, k = qd.local(jnp.full(5, x[i])), qd.local(0)
        for _ in qd.while_(lambda: k.value < n[i]):
            a[k.value % 5] = advance(a[(k.value + 3) % 5], k.value, x[i])
            k += 1
        return a[0] * a[1] + a[4]

    def theirs(x, n):
        body = lambda k, a: a.at[k % 5].set(advance(a[(k + 3) % 5], k, x))  # noqa: E731
        a = jax.lax.fori_loop(0, n, body, jnp.full(5, x))
        return a[0] * a[1] + a[4]

    agrees(ours, theirs)


@pytest.mark.full
@pytest.mark.parametrize("outer", [1, 3])
def test_unknown_in_known_in_unknown(outer):
    """The bound of the inner loop depends on both loops around it."""

    @each
    def ours(i, x, n):
        a, t = qd.local(x[i]), qd.local(0)
        for _ in qd.while_(lambda: t.value * t.value < n[i]):
            for o in qd.range(outer):
                for k in qd.range(t.value * o % 70):
                    a.value = advance(a.value, k, x[i])
                a.value = jnp.cos(a.value) + x[i]
            t += 1
        return a.value

    def theirs(x, n):
        def one(carry):
            t, a = carry
            for o in range(outer):
                a = jax.lax.fori_loop(0, t * o % 70, lambda k, a: advance(a, k, x), a)
                a = jnp.cos(a) + x
            return t + 1, a

        return jax.lax.while_loop(lambda c: c[0] * c[0] < n, one, (0, x))[1]

    agrees(ours, theirs)


@pytest.mark.full
def test_break_with_an_unknown_bound():
    @each
    def ours(i, x, n):
        a = qd.local(x[i])
        for k in qd.range(n[i]):
            qd.continue_if(k % 5 == 2)
            a.value = advance(a.value, k, x[i])
            qd.break_if((a.value > 1.5) & (k > n[i] - 3))
        return a.value

    def theirs(x, n):
        def one(carry):
            k, a, _ = carry
            new = advance(a, k, x)
            skips = k % 5 == 2
            return k + 1, jnp.where(skips, a, new), ~skips & (new > 1.5) & (k > n - 3)

        return jax.lax.while_loop(lambda c: (c[0] < n) & ~c[2], one, (0, x, False))[1]

    agrees(ours, theirs)


@pytest.mark.full
def test_as_many_in_all_lanes():
    """A stack that is full, and the next iterations: nobody has more of them, which would make its stride wider."""

    @each
    def ours(i, x, n):
        a = qd.local(x[i])
        for k in qd.range(n):
            a.value = advance(a.value, k, x[i])
            qd.break_if(a.value > 100)
        return a.value

    def theirs(x, n):
        return jax.lax.fori_loop(0, n, lambda k, a: advance(a, k, x), x)

    x = X[:3]
    got = jax.jit(jax.grad(lambda x, n: ours(x, n).sum()))
    want = jax.jit(lambda x, n: jax.jvp(lambda x: jax.vmap(theirs, (0, None))(x, n), (x,), (jnp.ones_like(x),))[1])
    for n in (*range(62, 69), *range(126, 134), *range(255, 260), *range(511, 516), 1024, 1025, 2049):
        np.testing.assert_allclose(got(x, n), want(x, n), rtol=1e-9, err_msg=str(n))


def sines(constant=None):
    @each
    def f(i, x, n):
        a = qd.local(x[i])
        for _ in qd.range(constant or n):
            a.value = jnp.sin(a.value)
        return a.value

    return jax.grad(lambda x, n: f(x, n).sum())


@pytest.mark.full
def test_more_iterations_than_their_numbers_hold(monkeypatch):
    monkeypatch.setattr(trip_counts, "MOST_TRIPS", 128)
    gradient = sines()
    assert np.isfinite(gradient(X, 128)).all()
    with pytest.raises(Exception, match=r"(?s)at most 2\*\*30 iterations of a loop that .*for _ in qd.range"):
        qd.block_until_ready(gradient(X, 129))


def test_more_iterations_by_constants():
    with pytest.raises(GradientError, match=r"(?s)at most 2\*\*30 iterations .* got 4294967296.*qd.range.*help:"):
        jax.jit(sines(2**32)).lower(X, 1)


@pytest.mark.slow
@pytest.mark.parametrize("trips", [10**6 - 1, 10**6])
def test_a_million(trips):
    """The derivative is a product of a million factors around 1."""

    @each
    def ours(i, x, n):
        a, k = qd.local(x[i]), qd.local(0)
        for _ in qd.while_(lambda: k.value < n):
            a.value = a.value + 1e-3 * jnp.sin(3 * a.value + k.value)
            k += 1
        return a.value

    def theirs(x):
        return jax.lax.fori_loop(0, trips, lambda k, a: a + 1e-3 * jnp.sin(3 * a + k), x)

    x = np.linspace(0.2, 0.9, 64)
    _, want = jax.jvp(theirs, (x,), (np.ones_like(x),))
    np.testing.assert_allclose(jax.grad(lambda x: ours(x, trips).sum())(x), want, rtol=1e-8)
