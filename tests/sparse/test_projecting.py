"""Projections of symmetric matrices in loops, against eigenvalues in double precision."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.sparse.projecting import projected as projected_one


@qd.jit
def projected(m: Any) -> Any:
    out = qd.empty(m.shape, m.dtype)
    for i in qd.range(m.shape[0]):
        out[i] = projected_one(m[i])
    return out


def wanted(m: np.ndarray) -> np.ndarray:
    m = m.astype(np.float64)
    found, vectors = np.linalg.eigh((m + m.swapaxes(1, 2)) / 2)
    return (vectors * np.maximum(found, 0)[:, None]) @ vectors.swapaxes(1, 2)


def matrices(n: int, count: int = 11) -> np.ndarray:
    """Symmetric matrices of spread eigenvalues, of low rank, of equal eigenvalues, diagonal ones and zeros."""
    rng = np.random.default_rng(n)
    bases = np.linalg.qr(rng.normal(size=(count, n, n)))[0]
    values = rng.normal(size=(count, n)) * 10.0 ** rng.integers(-4, 3, (count, 1))
    values[1] = np.where(np.arange(n) % 2, 1, -2)
    values[2] *= np.arange(n) < 2
    values[3] = np.logspace(-8, 0, n) * np.where(np.arange(n) % 3, 1, -1)
    made = (bases * values[:, None]) @ bases.swapaxes(1, 2)
    made[4] = np.diag(values[4])
    made[5] = 0
    return made


@pytest.mark.parametrize("n", [1, 2, 3, 5, pytest.param(12, marks=pytest.mark.full), 19])
def test_a_projection(n: int) -> None:
    m = matrices(n).astype(np.float32)
    want, scale = wanted(m), abs(m).max((1, 2), keepdims=True)
    got = np.asarray(projected(m), np.float64)
    # Rotations lose less than a rounding of the largest entry each in some six sweeps.
    assert (abs(got - want) <= 2e-7 * n * scale).all()
    assert (got == got.swapaxes(1, 2)).all()
    assert (got[5] == 0).all()


@pytest.mark.full
def test_in_double_precision() -> None:
    with jax.enable_x64(True):
        m = matrices(9)
        assert (abs(np.asarray(projected(m)) - wanted(m)) <= 4e-15 * abs(m).max((1, 2), keepdims=True)).all()


@pytest.mark.full
def test_a_matrix_without_negative_eigenvalues_stays() -> None:
    m = matrices(6).astype(np.float32)
    m = m @ m.swapaxes(1, 2) + np.eye(6, dtype=np.float32)
    m = (m + m.swapaxes(1, 2)) / 2
    assert (np.asarray(projected(m)) == m).all()


@pytest.mark.full
def test_the_symmetric_part_is_projected() -> None:
    m = np.random.default_rng(0).normal(size=(5, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(projected(m), wanted(m), atol=3e-6)


@pytest.mark.full
@pytest.mark.parametrize("size", [1e-30, 1e36])
def test_sizes_whose_squares_are_no_numbers(size: float) -> None:
    m = matrices(7)[6:].astype(np.float32)
    m /= abs(m).max((1, 2), keepdims=True)
    got = np.asarray(projected(m * np.float32(size)), np.float64) / size
    assert (abs(got - wanted(m)) <= 2e-6).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_one_entry_that_is_no_number_is_all(bad: float) -> None:
    m = matrices(5).astype(np.float32)
    m[7, 1, 3] = bad
    got = np.asarray(projected(jnp.asarray(m)))
    assert np.isnan(got[7]).all()
    others = [k for k in range(len(m)) if k != 7]
    assert np.isfinite(got[others]).all()


@pytest.mark.full
def test_its_derivative_is_that_of_the_eigenvalues() -> None:
    def by_jax(m: Any) -> Any:
        found, vectors = jnp.linalg.eigh((m + m.swapaxes(1, 2)) / 2)
        return (vectors * jnp.maximum(found, 0)[:, None]) @ vectors.swapaxes(1, 2)

    rng = np.random.default_rng(5)
    m, w = (jnp.asarray(rng.normal(size=(6, 3, 3)).astype(np.float32)) for _ in range(2))
    got, want = (jax.grad(lambda m, f=f: jnp.sum(w * f(m)))(m) for f in (projected, by_jax))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("values", [(2, 2, 2), (-1, -1, 3), (-2, -2, -2), (0, 0, 5), (0, 0, 0), (1, 1, -1)], ids=str)
def test_equal_eigenvalues_have_a_derivative(values: tuple[float, ...]) -> None:
    """A change stays between positive eigenvalues, goes between negative ones, and in part from one to the other."""
    m = jnp.diag(jnp.asarray(values, jnp.float32))
    change = jnp.asarray(np.random.default_rng(1).normal(size=(3, 3)), jnp.float32)
    change = change + change.T
    _, got = jax.jvp(projected, (m[None],), (change[None],))
    a, b = np.meshgrid(values, values)
    with np.errstate(invalid="ignore"):
        share = (np.maximum(a, 0) + np.maximum(b, 0)) / (abs(a) + abs(b))
    known = ~np.isnan(share)  # at 0 it is any between those of both sides
    np.testing.assert_allclose(got[0][known], (share * change)[known], rtol=1e-5, atol=1e-6)
    assert np.isfinite(got).all()
