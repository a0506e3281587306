"""`jax.vmap` of `qd.jit(sizes="any")`, called directly: one program for all numbers of elements."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.lengths.programs import arguments, function_of
from tests.lengths.test_any_length import EXACT, added, met, ones, same_bits

pytestmark = pytest.mark.cpu


def moved(x: Any, y: Any, *, h: Any = 0.5) -> Any:
    for i in qd.range(x.shape[0]):
        x[i] = x[i] + h * y[i]
    return {"x": x, "y": y}


def stacked(count: int, n: int, m: int) -> tuple[Any, ...]:
    """Returns arguments of random functions for some elements."""
    rows = [arguments(n, m) for _ in range(count)]
    x, k, w = (jnp.stack([row[j] for row in rows]) for j in range(3))
    shift = jnp.arange(count, dtype=jnp.float32)
    return x + shift[:, None, None], k, w - shift[:, None], shift / 4


@pytest.mark.full
@pytest.mark.sample(16, full=8)
@pytest.mark.parametrize("seed", range(16))
def test_random_functions(seed: int) -> None:
    f, rng = function_of(seed), np.random.default_rng(seed)
    axes = tuple([None if k else 0 for k in rng.integers(0, 3, 4)])
    axes = axes if 0 in axes else (0, 0, 0, 0)
    one = jax.vmap(qd.jit(f, sizes="any", options=EXACT), axes)
    each = jax.vmap(qd.jit(f, options=EXACT), axes)
    n, m = rng.integers(1, 9, 2)

    def given(count: int) -> tuple[Any, ...]:
        return tuple([x if axis == 0 else x[0] for x, axis in zip(stacked(count, n, m), axes, strict=True)])

    met(one, *(given(count) for count in (3, 5, 6)))
    shared = 0
    for count in rng.choice((1, 2, 7, 8, 9, 16, 17, 33, 300), 3):
        got, work = added(one, *given(int(count)))
        shared += work.programs == 0
        same_bits(got, each(*given(int(count))))
    assert shared


@pytest.mark.full
def test_a_new_number_of_elements_is_a_new_length() -> None:
    f = qd.jit(moved, sizes="any", options=EXACT)

    def rows(count: int) -> Any:
        return jnp.arange(4.0 * count).reshape(count, 4)

    two = jax.vmap(f)
    met(two, *((rows(count), rows(count)) for count in (3, 5, 6, 7)))
    for count in (1, 9, 300):
        x = rows(count)
        got, work = added(two, x, x)
        assert (work.programs, work.compiled) == (0, 0)
        same_bits(got, {"x": 1.5 * x, "y": x})
    y = np.arange(4, dtype=np.float32)
    one = jax.vmap(f, (0, None), {"x": 0, "y": None})
    met(one, *((rows(count), y) for count in (3, 5, 6, 7)))
    for count in (1, 9, 300):
        got, work = added(one, rows(count), y)
        assert (work.programs, work.compiled) == (0, 0)
        same_bits(got, {"x": rows(count) + y / 2, "y": jnp.asarray(y)})


@pytest.mark.full
@pytest.mark.parametrize(
    "around",
    {
        "axes": lambda f, x: jax.vmap(f, (1, 1), 1)(x, x),
        "named": lambda f, x: jax.vmap(lambda v: f(v, v)["x"] + jax.lax.psum(0.0, "b"), axis_name="b")(x),
        "nested": lambda f, x: jax.vmap(jax.vmap(f))(x[:, None], x[:, None])["x"][:, 0],
        "jit": lambda f, x: jax.jit(jax.vmap(f))(x, x),
        "jvp": lambda f, x: jax.jvp(jax.vmap(f), (x, x), (x, x))[1],
        "inside": lambda f, x: jax.vmap(lambda v: jax.jvp(f, (v, v), (v, v))[1])(x),
        "grad": lambda f, x: jax.vmap(jax.grad(lambda v: f(v, v)["x"] @ v / 2))(x),
        "keyword": lambda f, x: jax.vmap(lambda v, h: f(v, v, h=h))(x, jnp.full(x.shape[0], 0.5)),
    }.items(),
    ids=lambda item: item[0],
)
def test_other_transformations(around: tuple[str, Any]) -> None:
    f = qd.jit(moved, sizes="any")
    for count in (3, 5, 6, 7):
        x = ones(4 * count).reshape(count, 4)
        got = around[1](f, x)
        np.testing.assert_allclose(got["x"] if isinstance(got, dict) else got, 1.5 * x)


@pytest.mark.full
def test_an_index_outside_of_its_array() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, k: Any) -> Any:
        for i in qd.range(k.shape[0]):
            x[k[i]] += 1.0
        return x

    one = jax.vmap(f)
    met(one, *((ones(4 * b).reshape(b, 4), jnp.zeros((b, 2), jnp.int32)) for b in (3, 5, 6)))
    x, k = ones(36).reshape(9, 4), jnp.ones((9, 2), jnp.int32)
    same_bits(one(x, k), x.at[:, 1].add(2.0))
    with pytest.raises(qd.BoundsError, match=r"index 4 is out of bounds"):
        one(x, k.at[8, 1].set(4))
    same_bits(one(x, k), x.at[:, 1].add(2.0))
