"""Matrices that a lane's loops multiply in every trip: the lane copies them once, and its results stay right."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.lanes.staging import FEW_TRIPS, STAGED

pytestmark = pytest.mark.cpu


def repeated(a: Any, v: Any, trips: Any) -> Any:
    step = lambda s: (jnp.tanh(jax.jit(jnp.matmul)(a, s[0]) + s[0] @ a), s[1] + 1)  # noqa: E731
    return jax.jit(lambda v: lax.while_loop(lambda s: s[1] < trips, step, (v, 0))[0])(v)


def masked(a: Any, v: Any, trips: Any) -> Any:
    """Returns what `repeated` does, in a form that JAX has the reverse mode of."""
    step = lambda v, k: (jnp.where(k < trips, jnp.tanh(a @ v + v @ a), v), None)  # noqa: E731
    return lax.scan(step, v, jnp.arange(9))[0]


def arguments(n: int, lanes: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n)
    a = rng.normal(size=(lanes, n, n)) / n**0.5
    return jnp.asarray(a), jnp.asarray(rng.normal(size=(lanes, n))), jnp.asarray(rng.integers(0, 9, lanes))


@pytest.mark.full
@pytest.mark.parametrize(("n", "lanes"), [(17, 33), (64, 3), (65, 1)])
@pytest.mark.parametrize("layout", [0, 2])
def test_values_and_gradients(n: int, lanes: int, layout: int) -> None:
    with jax.enable_x64(True):
        a, v, trips = arguments(n, lanes)
        a, axes = jnp.moveaxis(a, 0, layout), (layout, 0, 0)
        ours, theirs = qd.vmap(repeated, axes), jax.vmap(masked, axes)
        np.testing.assert_allclose(ours(a, v, trips), theirs(a, v, trips), rtol=0, atol=1e-12)
        loss = lambda f: lambda a, v: jnp.sum(jnp.sin(f(a, v, trips)))  # noqa: E731
        for got, want in zip(*(jax.grad(loss(f), (0, 1))(a, v) for f in (ours, theirs)), strict=True):
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-10)


def private(f: Callable[..., Any], *args: Any) -> int:
    with qd.options(array_mapping="lanes"):
        return sum(t.private_bytes for t in qd.jit(lambda *a: qd.vmap(f)(*a)).lower(*args).tasks)


def test_only_matrices_that_many_trips_multiply_are_copied() -> None:
    a, v, trips = arguments(20, 16)
    assert private(repeated, a, v, trips) >= a[0].size * 4
    larger = arguments(65, 4)
    assert larger[0][0].size > STAGED
    assert private(repeated, *larger) < larger[0][0].size * 4
    few = lambda a, v: lax.fori_loop(0, FEW_TRIPS - 1, lambda _, v: a @ v, v)  # noqa: E731
    looked_up = lambda a, v, k: lax.while_loop(lambda s: s[1] < k, lambda s: (s[0] + a[s[1], 0], s[1] + 1), (v, 0))[0]  # noqa: E731
    assert private(few, a, v) < a[0].size * 4
    assert private(looked_up, a, v, trips) < a[0].size * 4
