"""Gradients of random stencils, which gather, against JAX's: first and second order."""

from random import Random
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdtrace.passes import gather
from tests.autodiff.stencils import Stencil, kernel, random_stencil

TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-2, "bfloat16": 2e-1}
"""Sums of some dozen values in another order; half precision keeps three, and two, digits of each step."""


def compare(stencil: Stencil, seed: int, *, second: bool) -> None:
    rng = np.random.default_rng(seed)
    draw = lambda: jnp.asarray(rng.uniform(-1, 1, stencil.shape), stencil.dtype)  # noqa: E731
    arrays, directions, weights = ([draw() for _ in range(2)] for _ in range(3))

    def derivatives(step: Any) -> Any:
        numbers = (0, 1)
        first = jax.grad(lambda *a: stencil.loss(step, weights, *a).astype(jnp.float64), numbers)
        if not second:
            return jax.jit(first)(*arrays)
        along = lambda *a: sum((d * g).sum() for d, g in zip(directions, first(*a), strict=True))  # noqa: E731
        return jax.jit(lambda *a: (first(*a), jax.grad(along, numbers)(*a)))(*arrays)

    want, got = derivatives(stencil.oracle), derivatives(kernel(stencil))
    tolerance = TOLERANCE[np.dtype(stencil.dtype).name]
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
        a, b = (np.asarray(v, np.float64) for v in (a, b))
        np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance * max(1.0, np.abs(a).max(initial=0)))


@pytest.mark.parametrize("first", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(100, 900, 100))])
@pytest.mark.full
def test_random_stencils(wide_oracle: None, monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    """Every second program has inner elements apart, every third is differentiated twice; values are kept in some."""
    for seed in range(first, first + (100 if first else 3)):
        monkeypatch.setattr(gather, "PEELED", 10**6 if seed % 2 else 0)
        monkeypatch.setattr(gather, "SCATTER_COST", (10**6, 0, -(10**6))[seed // 2 % 3])
        compare(random_stencil(Random(seed)), seed, second=seed % 3 == 0)
