"""Eigenvalues, eigenvectors and Schur forms of matrices that are not Hermitian."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.lax import linalg

import qdtrace as qd
from tests.importer.harness import imported

RNG = np.random.default_rng(14)
DTYPES = {"f32": np.float32, "c64": np.complex64, "f64": np.float64, "c128": np.complex128}
# Backward stable: a modest multiple of eps times the norm, which is about the number of rows here.
ULPS = 100


@pytest.fixture(params=DTYPES)
def dtype(request):
    with jax.enable_x64(request.param.endswith(("f64", "c128"))):
        yield DTYPES[request.param]


def matrices(n: int, dtype) -> np.ndarray:
    """Random ones, zero, the identity, all ones and a rotation of the axes."""
    a = RNG.normal(size=(6, n, n))
    if np.issubdtype(dtype, np.complexfloating):
        a = a + 1j * RNG.normal(size=a.shape)
    a[2], a[3], a[4], a[5] = 0, np.eye(n), 1, np.roll(np.eye(n), 1, 0)
    return a.astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def distance(got, want) -> float:
    """Between two sets of numbers."""
    rest, worst = list(want), 0.0
    for value in got:
        nearest = int(np.argmin([abs(value - r) for r in rest]))
        worst = max(worst, abs(value - rest.pop(nearest)))
    return worst


@pytest.mark.sample(full=4)
@pytest.mark.parametrize("n", [1, 2, 3, 5, 6])
@pytest.mark.full
def test_eigenvalues_and_vectors(n, dtype):
    a = matrices(n, dtype)
    f = lambda a: linalg.eig(a, compute_left_eigenvectors=True, compute_right_eigenvectors=True)  # noqa: E731
    w, left, right = imported(f, a)(a)
    eps = np.finfo(dtype).eps
    for row, found in zip(a, w, strict=True):
        assert distance(found, np.linalg.eigvals(row.astype(complex))) <= ULPS * eps * n
    np.testing.assert_allclose(a @ right, right * w[:, None], rtol=0, atol=ULPS * eps * n)
    np.testing.assert_allclose(adjoint(left) @ a, w[:, :, None] * adjoint(left), rtol=0, atol=ULPS * eps * n)
    np.testing.assert_allclose(np.linalg.norm(right, axis=1), 1, rtol=8 * eps)
    if not np.issubdtype(dtype, np.complexfloating):
        assert np.all(w[2:5].imag == 0)


def defective(n: int, dtype) -> np.ndarray:
    """Jordan blocks of one eigenvalue: alone, turned, of steps of all sizes, in pairs, under larger entries."""
    step = np.diag(np.ones(n - 1), 1)
    turn = np.linalg.qr(RNG.normal(size=(n, n)))[0]
    cut = step.copy()
    cut[n // 2 - 1, n // 2] = 0
    above = np.eye(n) + np.triu(5 * RNG.normal(size=(n, n)), 1)
    rows = [step, step.T, step + np.eye(n), turn @ step @ turn.T, np.diag(10.0 ** np.arange(n)) @ step, cut, above]
    return np.stack(rows).astype(dtype)


@pytest.mark.parametrize("n", [2, 4, 7, 9])
def test_vectors_of_defective_matrices(n, dtype):
    """Substitution divides by eps for each row of a block."""
    a = defective(n, dtype)
    f = lambda a: linalg.eig(a, compute_left_eigenvectors=True, compute_right_eigenvectors=True)  # noqa: E731
    w, left, right = imported(f, a)(a)
    eps = np.finfo(dtype).eps
    size = np.linalg.norm(a, axis=(1, 2))[:, None, None]
    assert np.all(np.abs(a @ right - right * w[:, None]) <= ULPS * eps * n * size)
    assert np.all(np.abs(adjoint(left) @ a - w[:, :, None] * adjoint(left)) <= ULPS * eps * n * size)
    for vectors in (left, right):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=8 * eps)


@pytest.mark.full
@pytest.mark.parametrize("n", [2, 5])
@pytest.mark.parametrize("dtype", ["f32", "f64"], indirect=True)
def test_complex_eigenvalues_of_real_matrices_are_exact_pairs(n, dtype):
    a = matrices(n, dtype)
    f = lambda a: linalg.eig(a, compute_left_eigenvectors=True, compute_right_eigenvectors=True)  # noqa: E731
    for w, left, right in zip(*imported(f, a)(a), strict=True):
        for value, by_left, by_right in zip(w, left.T, right.T, strict=True):
            (twin,) = np.flatnonzero(w == np.conj(value)) if value.imag else (None,)
            if twin is None:
                assert not by_left.imag.any()
                assert not by_right.imag.any()
            else:
                np.testing.assert_array_equal(left[:, twin], np.conj(by_left))
                np.testing.assert_array_equal(right[:, twin], np.conj(by_right))


def test_a_multiple_eigenvalue_that_falls_apart_keeps_its_distance():
    # 1 + 2i and 1 - 2i, each twice with one vector: what falls apart moves by the square root of a rounding
    block = np.array([[1, 2], [-2, 1]])
    a = np.block([[block, np.eye(2)], [np.zeros((2, 2)), block]]).astype(np.float32)[None]
    w, v = imported(lambda a: jnp.linalg.eig(a), a)(a)
    eps = np.finfo(np.float32).eps
    assert distance(w[0], [1 + 2j, 1 + 2j, 1 - 2j, 1 - 2j]) <= 4 * eps**0.5
    assert distance(w[0], np.conj(w[0])) == 0
    np.testing.assert_allclose(a @ v, v * w[:, None], rtol=0, atol=ULPS * eps * 4)


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 3, 4])
def test_schur_form(n):
    a = matrices(n, np.complex64)
    t, z = imported(lambda a: linalg.schur(a), a)(a)
    eps = np.finfo(np.float32).eps
    np.testing.assert_array_equal(np.tril(t, -1), 0)
    np.testing.assert_allclose(z @ t @ adjoint(z), a, rtol=0, atol=ULPS * eps * n)
    np.testing.assert_allclose(adjoint(z) @ z, np.broadcast_to(np.eye(n), a.shape), rtol=0, atol=ULPS * eps)


def test_a_defective_matrix_and_one_of_large_numbers():
    a = np.array([[[2, 1, 0], [0, 2, 1], [0, 0, 2]], 1e30 * np.diag([1, 2, 3])], np.float32)
    (w,) = imported(jnp.linalg.eigvals, a)(a)
    # three equal eigenvalues of one vector move by the cube root of a rounding
    assert distance(w[0], [2, 2, 2]) <= 3 * np.finfo(np.float32).eps ** (1 / 3)
    assert distance(w[1], [1e30, 2e30, 3e30]) <= 1e24


def test_roots_of_polynomials():
    p = np.array([[1, -6, 11, -6], [2, 0, -2, 0]], np.float32)
    (roots,) = imported(lambda p: jnp.roots(p, strip_zeros=False), p)(p)
    assert distance(roots[0], [1, 2, 3]) <= 1e-4
    assert distance(roots[1], [-1, 0, 1]) <= 1e-5


@pytest.mark.parametrize("x64", [False, True])
def test_slopes_of_roots_are_those_of_jax(x64):
    with jax.enable_x64(x64):
        p = jnp.array([[1.0, -6.5, 11, -6], [2, 1, -2, 3]])
        size = lambda over: lambda p: jnp.sum(over(lambda p: jnp.abs(jnp.roots(p, strip_zeros=False)) ** 3)(p))  # noqa: E731
        got, want = jax.grad(size(qd.vmap))(p), jax.grad(size(jax.vmap))(p)
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-9 if x64 else 1e-3)


def test_not_a_number_gives_not_a_number():
    a = np.full((1, 3, 3), np.nan, np.float32)
    assert np.all(np.isnan(imported(jnp.linalg.eigvals, a)(a)[0]))
