"""Factorisations and solves of the matrices of all lanes in panels: values, derivatives of any order, and batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from qdtrace.vmap_factors import PANEL, with_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.cpu


def solve(lower: bool, transpose: bool, unit: bool, left: bool) -> Callable[[Any], Any]:
    def run(a: Any) -> Any:
        b = jnp.cos(a[..., :3] if left else a[..., :5, :])  # other numbers than those of the matrix
        return lax.linalg.triangular_solve(
            a, b, left_side=left, lower=lower, transpose_a=transpose, unit_diagonal=unit
        )

    return run


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "cholesky": jnp.linalg.cholesky,
    "lu": lambda a: lax.linalg.lu(a)[0],
    "pivots": lambda a: [x.astype(a.dtype) for x in lax.linalg.lu(jnp.flip(jnp.cos(3 * a), -1))[1:]],
    "solve": lambda a: jnp.linalg.solve(a, jnp.cos(a[..., :2])),
    "determinant": lambda a: jnp.linalg.slogdet(a)[1],
    "lower": solve(True, False, False, True),
    "lower transposed": solve(True, True, True, True),
    "upper": solve(False, False, True, True),
    "upper from the right": solve(False, True, False, False),
    "in a loop": lambda a: lax.fori_loop(0, 2, lambda _, m: jnp.linalg.cholesky(m @ m.swapaxes(-1, -2) + a), a),
}


def definite(count: int, n: int, dtype: Any) -> Any:
    a = np.random.default_rng(n).normal(size=(count, n, n))
    return jnp.asarray((a @ a.transpose(0, 2, 1) / n + 2 * np.eye(n)).astype(dtype))


def same(got: Any, want: Any, digits: float) -> None:
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=0, atol=digits * max(1.0, float(jnp.abs(other).max())))


def gradient(f: Any) -> Any:
    return jax.grad(lambda a: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(f(a))))


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("count", "n"), [(PANEL, 7), (PANEL + 1, 17), (50, 8)])
def test_values_and_derivatives(name: str, count: int, n: int) -> None:
    f = FUNCTIONS[name]
    with jax.enable_x64(True):
        a = definite(count, n, "float64")
        assert "qd_factor" in str(jax.make_jaxpr(with_kernels(f))(a))
        for of in (lambda f: f, gradient):
            same(jax.jit(of(with_kernels(f)))(a), jax.jit(of(f))(a), 1e-11)  # conditions of some 100
        if n == 7:
            second = lambda f: lambda a: jax.jvp(gradient(f), (a,), (jnp.cos(a),))[1]  # noqa: E731
            same(jax.jit(second(with_kernels(f)))(a), jax.jit(second(f))(a), 1e-9)
    same(jax.jit(with_kernels(f))(a.astype("float32")), jax.jit(f)(a.astype("float32")), 1e-4)


def test_batches_of_batches() -> None:
    a = definite(40, 9, "float32").reshape(2, 20, 9, 9)
    for name in ("cholesky", "pivots", "solve"):
        f = FUNCTIONS[name]
        same(jax.vmap(with_kernels(f), 1, 1)(a), jax.vmap(f, 1, 1)(a), 1e-4)
        same(with_kernels(f)(a), f(a), 1e-4)


def test_one_indefinite_matrix_is_nan_and_its_neighbours_are_not() -> None:
    a = definite(20, 8, "float32").at[3].multiply(-1).at[7, 5, 5].set(jnp.nan)
    got, want = with_kernels(lax.linalg.cholesky)(a), lax.linalg.cholesky(a)
    np.testing.assert_array_equal(np.isnan(np.tril(got)), np.isnan(np.tril(want)))
    np.testing.assert_allclose(got[8:], want[8:], rtol=1e-5, atol=1e-6)


def test_singular_matrices_and_nan_have_the_pivots_of_lapack() -> None:
    a = definite(20, 9, "float32").at[0].set(0).at[1, :, 4].set(0).at[2, 3].set(jnp.inf).at[3, 6, 0].set(jnp.nan)
    finite = np.array([0, 1, *range(4, 20)])
    for one, other in zip(with_kernels(lax.linalg.lu)(a), lax.linalg.lu(a), strict=True):
        np.testing.assert_allclose(one[finite], other[finite], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("count", "n", "dtype"), [(PANEL - 1, 8, "f4"), (PANEL, 65, "f4"), (PANEL, 8, "c8")])
def test_few_large_and_complex_matrices_stay_with_xla(count: int, n: int, dtype: str) -> None:
    a = jnp.ones((count, n, n), dtype)
    assert "qd_factor" not in str(jax.make_jaxpr(with_kernels(jnp.linalg.cholesky))(a))


def test_lowered_for_a_gpu_it_is_xlas() -> None:
    a = jnp.ones((PANEL, 8, 8))
    text = jax.jit(with_kernels(FUNCTIONS["lower"])).trace(a).lower(lowering_platforms=("cuda",)).as_text()
    assert "triangular_solve" in text
