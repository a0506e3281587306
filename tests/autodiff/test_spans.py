"""Gradients of loops over spans of any kind: neighbours run in parts, others do not, and values are the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

ELEMENTS = 70_000
"""Of the vector and, at least, of the entries: their adjoints are too large for copies a chunk."""


@qd.jit
def rows(first, last, col, w, x):
    out = qd.empty(first.shape, jnp.float32)
    for i in qd.range(first.shape[0]):
        acc = qd.local(0.5)
        for j in qd.range(first[i], last[i]):
            acc.value = jnp.sin(acc.value) + w[j] * x[col[j]]
        out[i] = acc.value
    return out


def adjoints(first, last, col, w, x, bar):
    """In double precision, row by row."""
    w_bar, x_bar = np.zeros(w.shape), np.zeros(x.shape)
    for low, high, b in zip(first, last, bar.astype(np.float64), strict=True):
        acc, states = 0.5, []
        for j in range(low, high):
            states.append(acc)
            acc = np.sin(acc) + np.float64(w[j]) * x[col[j]]
        for j, state in zip(reversed(range(low, high)), reversed(states), strict=True):
            w_bar[j] += b * x[col[j]]
            x_bar[col[j]] += b * w[j]
            b = b * np.cos(state)
    return w_bar, x_bar


def case(kind: str):
    rng = np.random.default_rng(3)
    lengths = rng.geometric(1 / 6, 400) - 1
    if kind == "long":  # longer than the stack of states
        lengths[[5, 350]] = 2500, 4100
    last = np.cumsum(lengths)
    first = last - lengths
    if kind == "overlapping":
        first = np.maximum(first - 2, 0)
    if kind == "turned":
        first[::7], last[::7] = last[::7].copy(), first[::7].copy()
    if kind == "shuffled":
        order = rng.permutation(first.size)
        first, last = first[order], last[order]
    m = max(int(first.max()), int(last.max()), ELEMENTS)
    w, x, bar = (rng.standard_normal(k).astype(np.float32) for k in (m, ELEMENTS, first.size))
    col = rng.integers(0, ELEMENTS, m).astype(np.int32)
    if kind == "special":
        w[[10, 200]], x[col[[50, 300]]] = (np.nan, np.inf), (np.inf, np.nan)
        bar[30] = np.inf
    return first.astype(np.int32), last.astype(np.int32), col, w, x, bar


def gradient(first, last, col, w, x, bar, function=rows):
    def reverse(w, x):
        return jax.vjp(lambda w, x: function(first, last, col, w, x), w, x)[1](bar)

    return [np.asarray(a) for a in jax.block_until_ready(jax.jit(reverse)(w, x))]


@pytest.mark.parametrize("kind", ["neighbours", "overlapping", "turned", "shuffled", "long", "special"])
def test_gradient(kind):
    given = case(kind)
    with np.errstate(invalid="ignore"):
        want = adjoints(*given)
    for got, expected in zip(gradient(*given), want, strict=True):
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(expected))
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


@qd.jit
def coupled(first, last, col, w, x):
    out = qd.empty(first.shape, jnp.float32)
    for i in qd.range(first.shape[0]):
        a, b, c = qd.local(0.5), qd.local(0.1), qd.local(-0.3)
        for j in qd.range(first[i], last[i]):
            term = w[j] * x[col[j]]
            old = a.value
            a.value = jnp.sin(b.value) + term
            b.value = jnp.cos(c.value) * w[j]
            c.value = jnp.sin(old) * jnp.cos(b.value) + x[col[j]]
        out[i] = a.value + b.value * c.value
    return out


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("function", [rows, coupled], ids=["one state", "three states"])
def test_neighbours_have_the_gradient_of_rows_that_lie_apart(function):
    first, last, col, w, x, bar = case("neighbours")
    low = qd.jit(jax.grad(lambda w, x: jnp.sum(function(first, last, col, w, x)), argnums=(0, 1))).lower(w, x)
    assert "values of positions apart" in low.tasks[-1].reason
    near = gradient(first, last, col, w, x, bar, function)
    gaps = np.arange(first.size, dtype=np.int32)
    at = np.concatenate([np.arange(low, high) + k for low, high, k in zip(first, last, gaps, strict=True)])
    spread_col, spread_w = np.zeros(w.size + gaps.size, np.int32), np.zeros(w.size + gaps.size, np.float32)
    spread_col[at], spread_w[at] = col[: at.size], w[: at.size]
    far = gradient(first + gaps, last + gaps, spread_col, spread_w, x, bar, function)
    np.testing.assert_allclose(near[0][: at.size], far[0][at], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(near[1], far[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("place", [0, 1000])
def test_an_index_outside_ends_the_call(place):
    first, last, col, *others = case("neighbours")
    col[place] = ELEMENTS
    with pytest.raises(Exception, match=f"index {ELEMENTS} is out of bounds for axis 0 of `x`"):
        qd.block_until_ready(gradient(first, last, col, *others))


def test_a_span_outside_ends_the_call():
    first, last, *others = case("neighbours")
    last[-1] = ELEMENTS + 1
    with pytest.raises(Exception, match=f"index {ELEMENTS} is out of bounds for axis 0 of `"):
        qd.block_until_ready(gradient(first, last, *others))


def test_a_wrong_index_that_nobody_meets_is_no_error():
    first, last, col, *others = case("neighbours")
    long = int(np.argmax(last - first))
    last[long] -= 1
    col[last[long]] = -1
    got = gradient(first, last, col, *others)
    assert got[0][last[long]] == 0


def test_sums_have_the_same_bits_in_every_run():
    given = case("neighbours")
    one = gradient(*given)
    for _ in range(3):
        for a, b in zip(one, gradient(*given), strict=True):
            np.testing.assert_array_equal(a, b)
