"""Stacks of two to five of JAX's transformations around a kernel, against those around the same function in jnp."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.autodiff.stacked import KERNELS, TRANSFORMATIONS


def check(kernel: str, stack: list[str], size: int, seed: int) -> None:
    ours, theirs = KERNELS[kernel]
    for name in stack:
        ours, theirs = (TRANSFORMATIONS[name](f) for f in (ours, theirs))
    x, y = jnp.asarray(np.random.default_rng(seed).normal(size=(2, size)))
    try:
        expected = theirs(x, y)
    except (ValueError, NotImplementedError, TypeError):  # JAX has no such derivative: reverse mode of a `fori_loop`
        return
    got = ours(x, y)
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), (kernel, stack, size)
    # rounding of a stack of derivatives grows with their largest element
    scale = 1 + float(jnp.abs(expected).max())
    np.testing.assert_allclose(got, expected, rtol=1e-7, atol=1e-9 * scale, err_msg=f"{kernel} {stack} {size}")


def draw(seed: int) -> None:
    rng = random.Random(seed)
    stack = [rng.choice([*TRANSFORMATIONS]) for _ in range(rng.randint(2, 5))]
    with jax.enable_x64(True):
        check(rng.choice([*KERNELS]), stack, rng.choice([1, 2, 3, 5, 8, 17]), seed)


@pytest.mark.full
@pytest.mark.parametrize(
    "stack", [["adjoint that moves", "gradient by the first"], ["rule for tangents", "curvature", "reverse Jacobian"]]
)
def test_residuals_of_more_parameters_than_have_a_part(stack: list[str]) -> None:
    """Transposed once more, an adjoint by two parameters is a tangent along one of them."""
    with jax.enable_x64(True):
        check("sum and use", stack, 3, 0)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
def test_random_stacks(seed: int) -> None:
    draw(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 300))
def test_more_random_stacks(seed: int) -> None:
    draw(seed)
