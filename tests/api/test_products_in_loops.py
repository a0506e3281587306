"""Random networks and solvers in loops that lanes leave at different times, beside `jax.vmap` of a masked scan.

JAX has no reverse mode of a `while`, so the other side runs all steps that any lane takes, and keeps a lane's state
once its own are done: values and derivatives of both orders are JAX's.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests.selection import drawn

MOST_TRIPS = 5
SIDES = (3, 8, 16, 17, 20, 33)
BODIES = ("layers", "transposed layers", "scan over layers", "relaxation", "matrix of a lane")


def function_of(body: str, masked: bool) -> Callable[..., Any]:
    """Returns a lane that runs a step of a kind as often as its limit says."""

    def lane(ws: Any, m: Any, v: Any, limit: Any) -> Any:
        def step(v: Any) -> Any:
            if body == "layers":
                for w in ws:
                    v = jnp.tanh(w @ v)
            elif body == "transposed layers":
                for w in ws:
                    v = jnp.tanh(v @ w)
            elif body == "scan over layers":
                v = lax.scan(lambda v, w: (jnp.sin(w @ v), None), v, ws)[0]
            elif body == "relaxation":
                v = v - 0.1 * (ws[0].T @ (ws[0] @ v - m[0]))
            else:
                v = jnp.tanh((m @ ws[0]) @ v)
            return 0.5 * v

        if not masked:
            return lax.while_loop(lambda s: s[1] < limit, lambda s: (step(s[0]), s[1] + 1), (v, jnp.int32(0)))[0]
        steps = jnp.arange(MOST_TRIPS, dtype=jnp.int32)
        return lax.scan(lambda v, t: (jnp.where(t < limit, step(v), v), None), v, steps)[0]

    return lane


def draw(seed: int) -> tuple[str, tuple[Any, ...], tuple[int | None, ...], np.ndarray]:
    """Draws a body, arguments, their axes and the limits of the lanes."""
    rng = np.random.default_rng(seed)
    body, n, lanes = str(rng.choice(BODIES)), int(rng.choice(SIDES)), int(rng.choice((1, 3, 17, 40)))
    dtype = np.dtype(str(rng.choice(("float32", "float64"))))
    shared, layers = bool(rng.integers(4)), int(rng.integers(1, 4))

    def array(*shape: int) -> Any:
        return (rng.normal(size=shape) / np.sqrt(n)).astype(dtype)

    ws = array(layers, n, n) if shared else array(lanes, layers, n, n)
    args = ws, array(lanes, n, n), array(lanes, n) * np.sqrt(n).astype(dtype)
    return body, args, (None if shared else 0, 0, 0, 0), rng.integers(0, MOST_TRIPS + 1, lanes).astype(np.int32)


def compare(seed: int, mode: str, *, second: bool = False) -> None:
    body, args, axes, limits = draw(seed)
    rng = np.random.default_rng(seed)
    digits = 1e-4 if args[0].dtype == np.float32 else 1e-11  # sums of at most 40 x 5 x 33 terms

    def same(x: Any, y: Any) -> None:
        np.testing.assert_allclose(x, y, rtol=digits, atol=digits * (1 + np.abs(y).max(initial=0)))

    def loss(f: Any) -> Callable[..., Any]:
        return lambda *args: jnp.sum(f(*args, limits) ** 2)

    with jax.enable_x64(True), qd.options(array_mapping=mode), jax.default_matmul_precision("highest"):
        ours, theirs = qd.vmap(function_of(body, False), axes), jax.vmap(function_of(body, True), axes)
        directions = tuple(rng.normal(size=a.shape).astype(a.dtype) for a in args)
        if second:
            found = [
                jax.jit(lambda *a, f=f: jax.jvp(jax.grad(loss(f), (0, 1, 2)), a, directions)[1])(*args)
                for f in (ours, theirs)
            ]
            jax.tree.map(same, *found)
            return
        jax.tree.map(
            same,
            *(jax.jit(lambda *a, f=f: jax.jvp(lambda *x: f(*x, limits), a, directions))(*args) for f in (ours, theirs)),
        )
        jax.tree.map(same, *(jax.jit(jax.grad(loss(f), (0, 1, 2)))(*args) for f in (ours, theirs)))


@pytest.mark.sample(full=5)
@pytest.mark.parametrize("seed", range(drawn(6)))
@pytest.mark.parametrize("mode", ["auto", "lanes", "batch"])
@pytest.mark.full
def test_random_loops(seed: int, mode: str) -> None:
    compare(seed, mode)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(3))
def test_second_derivatives(seed: int) -> None:
    compare(seed, "auto", second=True)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_many_loops(seed: int) -> None:
    compare(seed, ("auto", "lanes", "batch")[seed % 3])
    compare(seed, "auto", second=True)


def test_all_bodies_are_drawn() -> None:
    assert {draw(seed)[0] for seed in range(40)} == set(BODIES)


@pytest.mark.full
@pytest.mark.cpu
@pytest.mark.parametrize("n", [20, 33])
def test_gradients_by_shared_weights_are_sums_by_tiles(n: int) -> None:
    w, v, limits = jnp.eye(n) / 2, jnp.ones((64, n)), jnp.arange(64, dtype=jnp.int32) % 4
    lane = function_of("layers", False)
    low = qd.jit(jax.grad(lambda w: jnp.sum(qd.vmap(lane, (None, None, 0, 0))(w[None], w, v, limits)))).lower(w)
    assert "sums of outer products by tiles" in low.tasks[-1].reason


@pytest.mark.full
def test_what_lanes_that_left_hold_is_left_out() -> None:
    """The factor of a lane that has left is infinite: times zero it would be no number."""
    w, v = jnp.eye(20) / 2, jnp.ones((33, 20)).at[3].set(jnp.inf)
    limits = jnp.full(33, 2, jnp.int32).at[3].set(0)
    lane = function_of("layers", False)
    slopes = jax.grad(lambda w: jnp.sum(qd.vmap(lane, (None, None, 0, 0))(w[None], w, v, limits)[:3]))(w)
    assert np.isfinite(slopes).all()
    assert np.abs(slopes).max() > 0
