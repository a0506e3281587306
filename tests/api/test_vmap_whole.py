"""Lanes call `qd.jit` functions that make buffers or store into their arguments: all lanes at once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

X = jnp.linspace(-2.0, 2.0, 24).reshape(3, 8)
W = jnp.linspace(0.5, 0.9, 8)


@qd.jit
def shrunk(x: Any, w: Any) -> Any:
    """Makes a buffer between stores into its argument."""
    for i in qd.range(x.shape[0]):
        v = qd.local(x[i])
        for _ in qd.while_(lambda v=v: jnp.abs(v.value) > 0.5):
            v.value = v.value * w[i]
        x[i] = v.value
    around = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        around[(i + 1) % x.shape[0]] += x[i] * x[i]
    return x, around


@qd.jit
def doubled(x: Any) -> Any:
    for i in qd.range(x.shape[0]):
        x[i] = 2 * x[i]
    return x


def halved(x: Any) -> Any:
    """Has lanes of their own lengths."""
    return jax.lax.while_loop(lambda v: v > 0.1, lambda v: v * 0.5, jnp.abs(x) + 1)


def made_anew(x: Any, w: Any) -> Any:
    @qd.jit
    def own(x: Any) -> Any:
        return doubled(x) + shrunk(x, w)[1]

    return own(x) + own(w)


LANES: dict[str, Callable[[Any, Any], Any]] = {
    "alone": shrunk,
    "stores": lambda x, w: (doubled(x), x),
    "between loops of the lane": lambda x, w: jax.tree.map(lambda y: y * halved(y[0]), shrunk(x * halved(x[0]), w)),
    "in a scan": lambda x, w: jax.lax.scan(lambda x, _: (shrunk(x + 1, w)[0], x[0]), x, None, length=3),
    "in a branch": lambda x, w: jax.lax.cond(x[0] > 0, lambda: shrunk(x, w)[1], lambda: x),
    "of what no lane differs in": lambda x, w: shrunk(w, w)[1] * x,
    "made in the lane": made_anew,
    "in a helper": lambda x, w: jax.jit(lambda x: shrunk(x, w)[1] + 1)(x),
}


def all_of(results: Any) -> Any:
    return sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(results))


@pytest.mark.full
@pytest.mark.parametrize("lane", LANES.values(), ids=LANES)
def test_lanes_and_their_derivatives_are_those_of_jax_vmap(lane: Any) -> None:
    def loss(transform: Any) -> Any:
        return lambda x, w: all_of(transform(lane, (0, None))(x, w))

    def agree(found: Any, wanted: Any) -> None:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6), found, wanted)

    agree(qd.vmap(lane, (0, None))(X, W), jax.vmap(lane, (0, None))(X, W))
    nested = qd.vmap(qd.vmap(lane, (0, None), 1), (1, None))(X[:, None], W)
    agree(jax.tree.map(lambda y: y[0], nested), jax.vmap(lane, (0, None), 1)(X, W))
    if lane is not LANES["between loops of the lane"]:  # which JAX cannot reverse
        agree(jax.grad(loss(qd.vmap), (0, 1))(X, W), jax.grad(loss(jax.vmap), (0, 1))(X, W))
    tangents = jax.jvp(loss(qd.vmap), (X, W), (X, W))[1], jax.jvp(loss(jax.vmap), (X, W), (X, W))[1]
    agree(*tangents)


def test_the_reverse_of_loops_around_a_whole_call() -> None:
    f = LANES["between loops of the lane"]
    slopes = jax.grad(lambda x: all_of(qd.vmap(f, (0, None))(x, W)))(X)
    _, change = jax.jvp(lambda x: all_of(jax.vmap(f, (0, None))(x, W)), (X,), (X,))
    np.testing.assert_allclose((slopes * X).sum(), change, rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("count", [0, 1, 40])
def test_gradients_inside_of_a_lane_at_any_number_of_lanes(count: int) -> None:
    x = jnp.resize(X, (count, 8))
    found = qd.vmap(jax.grad(lambda x: all_of(shrunk(x, W))))(x)
    one = jax.grad(lambda x: all_of(shrunk(x, W)))
    assert found.shape == x.shape
    for row, wanted in zip(found, map(one, x), strict=True):
        np.testing.assert_allclose(row, wanted, rtol=1e-6)


def test_sparse_derivatives_and_segments_of_lanes() -> None:
    @qd.jit
    def energy(x: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0] - 1):
            out[()] += (x[i + 1] - x[i]) ** 4
        return out

    pattern = qd.sparsity(energy)(X[0])
    values = qd.vmap(lambda x: qd.sparse_hessian(energy, pattern)(x))(X)
    for row, x in zip(values, X, strict=True):
        np.testing.assert_allclose(pattern.to_scipy(row).toarray(), jax.hessian(energy)(x), rtol=1e-5, atol=1e-5)
    assert qd.vmap(lambda k: qd.segments(k, 3))(jnp.array([[0, 1, 1], [1, 2, 2]])).tolist() == [
        [0, 1, 3, 3],
        [0, 0, 1, 3],
    ]


def test_functions_that_each_trace_makes_anew() -> None:
    """A lane ends up with whole calls of them, by their place among all calls."""

    def lane(row: Any) -> Any:
        @qd.jit
        def doubled(row: Any) -> Any:
            out = qd.zeros_like(row)
            for i in qd.range(row.shape[0]):
                out[i] = 2 * row[i]
            return out

        return doubled(doubled(row))

    np.testing.assert_array_equal(qd.vmap(lane)(X), 4 * X)


def test_what_fails_is_told() -> None:
    @qd.jit
    def shifted(x: Any, by: Any) -> Any:
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = x[i + by]
        return out

    assert qd.vmap(shifted)(X, jnp.zeros(3, jnp.int32)).tolist() == X.tolist()
    with pytest.raises(qd.BoundsError, match="index 8 is out of bounds for axis 0 of `x`"):
        qd.block_until_ready(qd.vmap(shifted)(X, jnp.array([0, 1, 0])))
    with pytest.raises(qd.TraceIndexError, match="array is 1-dimensional, but 2 were indexed"):
        qd.vmap(lambda x: shifted(x, 0)[0, 0])(X)

    def with_a_loop(x: Any) -> Any:
        total = qd.local(0.0)
        for k in qd.range(3):
            total += x[k]
        return doubled(x) + total.value

    with pytest.raises(qd.TraceTypeError, match="a store needs a buffer or a cell, got a value"):
        qd.vmap(with_a_loop)(X)
