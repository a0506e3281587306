"""Sums over the rows of many matrices with two or three columns: values and derivatives beside JAX's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdtrace.lanes.panels import with_kernels
from qdtrace.lanes.short_rows import LEAST, sum_p

pytestmark = pytest.mark.cpu


@pytest.mark.full
@pytest.mark.parametrize(("shape", "dtype"), [((64, 53, 3), "float32"), ((3, 33, 65, 2), "float64")])
def test_values_derivatives_and_batches(shape: tuple[int, ...], dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        x = jnp.asarray(np.random.default_rng(0).normal(size=shape).astype(dtype))

        def f(x: Any) -> Any:
            return jnp.sum(x * jnp.cos(x), -2)

        def every(f: Any) -> Any:
            def slope(x: Any) -> Any:
                return jax.grad(lambda x: jnp.sum(jnp.sin(f(x))))(x)

            def run(x: Any) -> Any:
                return f(x), jax.vmap(f, 1)(jnp.stack([x, -x], 1)), jax.jvp(slope, (x,), (jnp.cos(x),))

            return jax.jit(run)(x)

        assert sum_p in [e.primitive for e in jax.make_jaxpr(with_kernels(f))(x).eqns]
        for one, other in zip(jax.tree.leaves(every(with_kernels(f))), jax.tree.leaves(every(f)), strict=True):
            assert (one.shape, one.dtype) == (other.shape, other.dtype)
            digits = 1e-5 if dtype == "float32" else 1e-13  # of the largest, in sums of 65 terms
            np.testing.assert_allclose(one, other, rtol=0, atol=digits * float(jnp.abs(other).max()))


@pytest.mark.parametrize(
    ("shape", "axis", "dtype"),
    [
        ((64, 53, 4), 1, "float32"), ((64, 53, 1), 1, "float32"), ((53, 64, 3), 0, "float32"),
        ((LEAST, 3), 0, "float32"),
        ((64, 17, 3), 1, "float32"), ((64, 53, 3), 2, "float32"), ((64, 53, 3), 1, "int32"),
        ((64, 53, 3), 1, "complex64"),
    ],
)  # fmt: skip
def test_other_sums_stay_with_xla(shape: tuple[int, ...], axis: int, dtype: str) -> None:
    made = jax.make_jaxpr(with_kernels(lambda x: jnp.sum(x, axis)))(jnp.ones(shape, dtype))
    assert sum_p.name not in str(made)
