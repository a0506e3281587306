"""Reductions over windows, their derivatives, and convolutions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tests.importer.harness import check

RNG = np.random.default_rng(12)
X = RNG.normal(size=(3, 5, 6)).astype(np.float32)
SPECIAL = X.copy()
SPECIAL[0, 1, 1], SPECIAL[1, 2, 3], SPECIAL[2] = np.nan, np.inf, -np.inf
LONG = RNG.normal(size=(2, 60)).astype(np.float32)
FORMS = [
    {"window_dimensions": (2, 3), "window_strides": (1, 1), "padding": "VALID"},
    {"window_dimensions": (3, 3), "window_strides": (2, 1), "padding": "SAME"},
    {"window_dimensions": (2, 2), "window_strides": (1, 2), "padding": ((1, 0), (2, 3)),
     "base_dilation": (2, 1), "window_dilation": (1, 3)},
]  # fmt: skip
MONOIDS = {
    "sum": (0.0, lax.add),
    "max": (-np.inf, lax.max),
    "min": (np.inf, lax.min),
    "prod": (1.0, lax.mul),
    "own": (0.0, lambda a, b: a + b + a * b),
}


@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("name", MONOIDS)
def test_windows(name, form):
    start, combine = MONOIDS[name]
    for x in (X, SPECIAL):
        check(lambda v: lax.reduce_window(v, np.float32(start), combine, **FORMS[form]), x)


@pytest.mark.parametrize("name", ["sum", "own"])
def test_windows_of_many_places_are_loops(name):
    start, combine = MONOIDS[name]
    f = lambda v: lax.reduce_window(v, np.float32(start), combine, (40,), (3,), "SAME")  # noqa: E731
    # products of forty numbers
    assert check(f, LONG, rtol=1e-5, atol=1e-5).count() < 400


@pytest.mark.parametrize(("repeats", "equations"), [(1, 400), (10, 200)])
def test_a_reduction_by_a_function_is_a_window_over_all_of_its_axes(repeats, equations):
    """Also one of more elements than are kept as scalars."""
    f = lambda v: lax.reduce(jnp.tile(v, repeats), np.float32(0), lambda a, b: a + b + 0.1 * a * b, (0,))  # noqa: E731
    assert check(f, LONG[:, :40], rtol=1e-4, atol=1e-4).count() < equations


def test_windows_of_integers():
    n = (10 * X).astype(np.int32)
    check(lambda v: lax.reduce_window(v, np.iinfo(np.int32).min, lax.max, (2, 2), (1, 1), "SAME"), n)
    check(lambda v: lax.reduce_window(v, 0, lax.add, (2, 2), (1, 1), "SAME"), n)
    check(lambda v: lax.reduce_window(v > 0, False, lax.bitwise_or, (2, 2), (1, 1), "SAME"), n)


def test_windows_of_several_arrays():
    def f(v):
        starts = (jnp.float32(-np.inf), jnp.float32(0))
        return lax.reduce_window(
            (v, 2 * v), starts, lambda a, b: (lax.max(a[0], b[0]), a[1] + b[1]), (2, 2), (1, 1), "SAME"
        )

    check(f, X)


def pooled(v):
    return lax.reduce_window(v, -jnp.inf, lax.max, (2, 3), (1, 2), "SAME")


@pytest.mark.full
def test_derivatives_of_pooling():
    weights = jnp.arange(15.0).reshape(5, 3)
    ties = np.zeros_like(X)
    for x in (X, ties):
        check(jax.grad(lambda v: jnp.sum(pooled(v) * weights)), x)
        check(lambda v: jax.jvp(pooled, (v,), (2 * v + 1,))[1], x)
    check(jax.grad(lambda v: jnp.sum(lax.reduce_window(v, 0.0, lax.add, (2, 3), (1, 2), "SAME") ** 2)), X)


@pytest.mark.full
def test_derivative_of_pooling_over_many_places():
    f = lambda v: jnp.sum(lax.reduce_window(v, -jnp.inf, lax.max, (40,), (2,), "SAME") ** 2)  # noqa: E731
    check(jax.grad(f), LONG)


IMAGES = RNG.normal(size=(2, 2, 4, 5, 4)).astype(np.float32)
KERNELS = RNG.normal(size=(2, 6, 4, 3, 2)).astype(np.float32)
CONVOLUTIONS = {
    "plain": lambda i, k: lax.conv(i, k, (1, 1), "SAME"),
    "strides and dilation": lambda i, k: lax.conv_general_dilated(i, k, (2, 1), ((1, 2), (0, 1)), (1, 2), (2, 1)),
    "groups of features": lambda i, k: lax.conv_general_dilated(i, k[:, :2], (1, 1), "VALID", feature_group_count=2),
    "groups of the batch": lambda i, k: lax.conv_general_dilated(i, k, (1, 1), "VALID", batch_group_count=2),
    "channels last": lambda i, k: lax.conv_general_dilated(
        i.transpose(0, 2, 3, 1), k.transpose(2, 3, 1, 0), (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    "transposed": lambda i, k: lax.conv_transpose(
        i[:, :, :2], k, (2, 2), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW")
    ),
    "accumulated in more precision": lambda i, k: lax.conv_general_dilated(
        i.astype(jnp.bfloat16), k.astype(jnp.bfloat16), (1, 1), "VALID", preferred_element_type=jnp.float32
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name):
    check(CONVOLUTIONS[name], IMAGES, KERNELS)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions_of_vectors(mode):
    a, b = X[:, 0], X[:, 1, :3]
    check(lambda a, b: (jnp.convolve(a, b, mode), jnp.correlate(a, b, mode)), a, b)
    check(lambda a, b: jnp.convolve(a, b, mode), (9 * a).astype(np.int32), (9 * b).astype(np.int32))
    check(lambda a, b: jnp.convolve(a + 1j * a[::-1], b, mode), a, b)


@pytest.mark.full
def test_derivatives_of_convolutions():
    check(jax.grad(lambda a, b: jnp.sum(jnp.convolve(a, b) ** 2), (0, 1)), X[:, 0], X[:, 1, :3], rtol=1e-4)


def test_constant_zeros_times_infinities_are_kept():
    kernel = np.array([[[1, 0]]], np.float32)
    check(lambda v: lax.conv_general_dilated(v[None, :1], jnp.asarray(kernel), (1,), "VALID"), SPECIAL)


def test_windows_larger_than_the_array():
    check(lambda v: lax.reduce_window(v, 0.0, lax.add, (9, 9), (1, 1), "VALID"), X)
    check(lambda v: lax.reduce_window(v, 0.0, lax.add, (9, 9), (4, 4), "SAME"), X)


@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_windows_of_complex_numbers(name):
    start, combine = MONOIDS[name]
    z = X[:, 0] + 1j * X[:, 1, ::-1]
    for padding in ("VALID", "SAME"):
        check(lambda v, p=padding: lax.reduce_window(v, np.complex64(start), combine, (3,), (1,), p), z, rtol=1e-5)


@pytest.mark.full
def test_windows_without_axes():
    scalar = X[:, 0, 0]
    for start, combine in MONOIDS.values():
        check(lambda v, s=start, c=combine: lax.reduce_window(v, np.float32(s), c, (), (), "VALID"), scalar)
    check(jax.grad(lambda v: lax.reduce_window(v * v, -jnp.inf, lax.max, (), (), "VALID")), scalar)
