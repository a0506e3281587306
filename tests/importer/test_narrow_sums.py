"""Sums and products of f16 and bf16 elements in a lane: as near to f64 as XLA's, which joins them in f32."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd

LANES, N = 32, 24


def window(x: Any) -> Any:
    return lax.reduce_window(jnp.tile(x, 9), np.zeros((), x.dtype), lax.add, (150,), (1,), "VALID")


FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "matrix_vector": lambda a, x: a @ x,
    "matrices": lambda a, x: a @ a,
    "vectors": lambda a, x: jnp.vdot(x, x),
    "transpose_of_product": lambda a, x: jax.vjp(lambda x: a @ x, x)[1](x)[0],
    "convolution": lambda a, x: jnp.convolve(x, x[:9]),
    "cumsum": lambda a, x: jnp.cumsum(x),
    "cumsum_in_memory": lambda a, x: jnp.cumsum(a.reshape(-1)[:300]),
    "cumprod": lambda a, x: jnp.cumprod(1 + x / 8),
    "cumlogsumexp": lambda a, x: lax.cumlogsumexp(x),
    "sum_without_upcast": lambda a, x: lax.reduce(a, np.zeros((), a.dtype), lax.add, (0, 1)),
    "window": lambda a, x: window(x),
}


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.full
def test_errors_are_at_most_those_of_jax(name: str, dtype: Any) -> None:
    f, keys = FUNCTIONS[name], jax.random.split(jax.random.key(0))
    a, x = jax.random.normal(keys[0], (LANES, N, N), dtype), jax.random.normal(keys[1], (LANES, N), dtype)
    with jax.enable_x64():
        wide = [jnp.asarray(np.asarray(v, np.float64)) for v in (a, x)]
        exact = np.asarray(jax.vmap(f)(*wide))
    ours, theirs = jax.jit(qd.vmap(f))(a, x), jax.jit(jax.vmap(f))(a, x)
    assert ours.dtype == theirs.dtype
    errors = [np.quantile(np.abs(np.asarray(v, np.float64) - exact), 0.99) for v in (ours, theirs)]
    # 1.5: both round once; which of two equally near results is met differs
    assert errors[0] <= 1.5 * errors[1]


def test_a_running_sum_of_ones_does_not_stick() -> None:
    """In bf16, 256 + 1 is 256."""
    found = qd.vmap(lambda one: jnp.cumsum(jnp.full(1000, one)))(jnp.ones(2, jnp.bfloat16))
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(1, 1001).astype(jnp.bfloat16), (2, 1000)))
