"""Sorts of lines that are too long for networks are stable, whatever dtypes, keys and operands they have."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

LANES = 5


def same_bits(got: Any, want: Any) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    assert np.asarray(got).tobytes() == np.asarray(want).tobytes()


def drawn(rng: np.random.Generator, dtype: str, *shape: int) -> Any:
    """Numbers of which many are equal, with those that have an order of their own."""
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return jnp.asarray(rng.integers(0, 2, shape).astype(bool))
    if jnp.issubdtype(kind, jnp.integer):
        info = jnp.iinfo(kind)
        return jnp.asarray(rng.choice([info.min, info.max, 0, 1, 2, 3, info.max - 1], shape).astype(kind))
    special = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 2.5]
    values = np.where(rng.random(shape) < 0.5, rng.choice(special, shape), rng.normal(size=shape).round(1))
    if jnp.issubdtype(kind, jnp.complexfloating):
        values = values + 1j * rng.choice([0.0, -0.0, 1.0, -1.0], shape)
    return jnp.asarray(values).astype(kind)


@pytest.mark.parametrize("n", [0, 1, 17, 33, 70])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "bool", "float16", "bfloat16", "int8", "complex64"])
def test_pairs(n: int, dtype: str) -> None:
    x = drawn(np.random.default_rng(n), dtype, LANES, n)

    def f(x: Any) -> Any:
        return lax.sort((x, jnp.arange(n), x[::-1]), num_keys=1)

    jax.tree.map(same_bits, jax.jit(qd.vmap(f))(x), jax.vmap(f)(x))


@pytest.mark.parametrize("keys", [1, 2, 3])
@pytest.mark.parametrize("axis", [0, 1])
def test_keys_and_axes(keys: int, axis: int) -> None:
    rng = np.random.default_rng(keys)
    x, y, z = (drawn(rng, dtype, LANES, 19, 20) for dtype in ("float32", "int8", "float16"))

    def f(*xs: Any) -> Any:
        return lax.sort(xs, dimension=axis, num_keys=keys)

    for got, want in zip(jax.jit(qd.vmap(f))(x, y, z), jax.vmap(f)(x, y, z), strict=True):
        same_bits(got, want)


@pytest.mark.parametrize("n", [20, 40])
def test_derivative(n: int) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(LANES, n)).astype(np.float32))

    def loss(mapped: Any, x: Any) -> Any:
        return jnp.sum(mapped(lambda r: jnp.sort(r) @ jnp.arange(n) + lax.top_k(r * r, 3)[0] @ jnp.arange(3.0))(x))

    got, want = (jax.grad(lambda x, m=m: loss(m, x))(x) for m in (qd.vmap, jax.vmap))
    np.testing.assert_allclose(got, want, 1e-6)
