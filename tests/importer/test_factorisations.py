"""Packed factorisations against LAPACK, as JAX calls it; complex matrices; tridiagonal systems."""

import importlib

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest
from jax._src.lax import linalg as private
from jax.lax import linalg

import qdtrace as qd
from qdtrace.trace import compat
from qdtrace.trace.importer.registry import decomposition_of
from tests.importer.harness import check, imported

RNG = np.random.default_rng(13)
DTYPES = {"f32": np.float32, "c64": np.complex64, "f64": np.float64, "c128": np.complex128}
SHAPES = [(1, 1), (3, 3), (4, 2), (2, 4), (7, 7), (9, 4), (4, 9)]
# Backward stable methods at norms of about one: see test_linalg.
ULPS = 200


@pytest.fixture(params=DTYPES)
def dtype(request):
    with jax.enable_x64(request.param.endswith(("f64", "c128"))):
        yield DTYPES[request.param]


def numbers(dtype, *shape: int) -> np.ndarray:
    a = RNG.normal(size=shape) / 2
    return (a + (1j * RNG.normal(size=shape) / 2 if np.issubdtype(dtype, np.complexfloating) else 0)).astype(dtype)


def like_jax(fn, *args, ulps=ULPS) -> None:
    eps = np.finfo(args[0].dtype).eps
    check(fn, *args, rtol=ulps * eps, atol=ulps * eps)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def close(got, want, dtype):
    np.testing.assert_allclose(got, want, rtol=0, atol=ULPS * np.finfo(dtype).eps)


@pytest.mark.sample(full=5)
@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES)
def test_reflections(shape, dtype):
    a = numbers(dtype, 2, *shape)
    like_jax(private.geqrf, a)
    if shape[0] < shape[1]:
        return
    packed, taus = (np.asarray(x) for x in private.geqrf(a))
    like_jax(linalg.householder_product, packed, taus)
    left, right = numbers(dtype, 2, shape[0], 2), numbers(dtype, 2, 2, shape[0])
    for transpose in (False, True):
        options = {"transpose": transpose}
        like_jax(lambda a, t, c, options=options: private.ormqr(a, t, c, left=True, **options), packed, taus, left)
        like_jax(lambda a, t, c, options=options: private.ormqr(a, t, c, left=False, **options), packed, taus, right)


@pytest.mark.sample(full=4)
@pytest.mark.full
@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonal_triangular(shape, dtype):
    a = numbers(dtype, 2, *shape)
    like_jax(lambda a: (jnp.linalg.qr(a), jnp.linalg.qr(a, mode="complete")), a)
    like_jax(lambda a: jsl.qr(a, pivoting=True, mode="economic"), a)


@pytest.mark.full
def test_pivoting_keeps_marked_columns_in_front():
    a = numbers(np.float32, 2, 4, 4)
    like_jax(lambda a: private.geqp3(a, jnp.array([0, 0, 1, 0], jnp.int32)), a)


@pytest.mark.full
def test_reflections_of_zeros():
    like_jax(private.geqrf, np.zeros((1, 3, 3), np.float32))
    like_jax(private.geqrf, np.zeros((1, 3, 3), np.complex64))


@pytest.mark.sample(full=4)
@pytest.mark.full
@pytest.mark.parametrize("n", [2, 3, 7])
def test_hessenberg_and_tridiagonal_forms(n, dtype):
    a = numbers(dtype, 2, n, n)
    # each reflection is of what those before have left: small remainders multiply roundings, of LAPACK's threads too
    like_jax(lambda a: jsl.hessenberg(a, calc_q=True), a, ulps=10 * ULPS)
    hermitian = (a + adjoint(a)) / 2
    like_jax(lambda a: linalg.tridiagonal(a, lower=True), hermitian)
    like_jax(lambda a: linalg.tridiagonal(a, lower=False), hermitian)


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_tridiagonal_systems(n, dtype):
    dl, d, du, b = (numbers(dtype, 3, n) for _ in range(4))
    b = numbers(dtype, 3, n, 2)
    d[0, 0] = 0 if n > 1 else 1  # needs an exchange of rows
    dense = np.zeros((3, n, n), dtype) + np.eye(n) * d[:, None]
    dense += np.eye(n, k=-1) * dl[..., None] + np.eye(n, k=1) * du[..., None]
    (x,) = imported(linalg.tridiagonal_solve, dl, d, du, b)(dl, d, du, b)
    wide = np.linalg.solve(dense.astype(complex), b.astype(complex))
    error = np.abs(x - wide).max((1, 2)) / np.abs(wide).max((1, 2))
    assert np.all(error <= 4 * n * np.linalg.cond(dense) * np.finfo(dtype).eps)


def test_singular_tridiagonal_systems():
    d = np.array([[0.0, 1.0], [1.0, 1.0]], np.float32)
    off = np.array([[0.0, 0.0], [1.0, 1.0]], np.float32)
    like_jax(linalg.tridiagonal_solve, off, d, off, np.ones((2, 2, 1), np.float32))


@pytest.mark.parametrize("n", [1, 3, 7])
def test_eigenvalues_of_hermitian_matrices(n, dtype):
    a = numbers(dtype, 3, n, n)
    h = (a + adjoint(a)) / 2
    h[0] = 0
    for lower in (True, False):
        part = np.tril(h) if lower else np.triu(h)
        f = lambda a, lower=lower: private.eigh(a, lower=lower, symmetrize_input=False)  # noqa: E731
        v, w = imported(f, part)(part)
        assert (v.dtype, w.dtype) == (h.dtype, h.real.dtype)
        close(w, np.linalg.eigvalsh(h.astype(complex)), dtype)
        close((v * w[:, None]) @ adjoint(v), h, dtype)
        close(adjoint(v) @ v, np.broadcast_to(np.eye(n), h.shape), dtype)


@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values(shape, dtype):
    a = numbers(dtype, 3, *shape)
    a[0] = 1
    for full in (False, True):
        u, s, v = imported(lambda a, full=full: jnp.linalg.svd(a, full_matrices=full), a)(a)
        k = min(shape)
        close(s, np.linalg.svd(a.astype(complex), compute_uv=False), dtype)
        close((u[..., :k] * s[:, None]) @ v[:, :k], a, dtype)
        for q in (u, adjoint(v)):
            close(adjoint(q) @ q, np.broadcast_to(np.eye(q.shape[2]), (3, q.shape[2], q.shape[2])), dtype)


@pytest.mark.full
def test_functions_built_of_them():
    a = numbers(np.complex64, 2, 3, 3)
    like_jax(lambda a: (jnp.linalg.pinv(a), jnp.linalg.cond(a), jnp.linalg.norm(a, 2)), a)


def test_updates():
    a, w = numbers(np.float32, 2, 3, 3), numbers(np.float32, 2, 3)
    spd = a @ adjoint(a) + np.eye(3, dtype=np.float32)
    (got,) = imported(linalg.cholesky_update, adjoint(np.linalg.cholesky(spd)), w)(adjoint(np.linalg.cholesky(spd)), w)
    close(adjoint(got) @ got, spd + w[:, :, None] * w[:, None], np.float32)
    like_jax(lambda a: linalg.symmetric_product(a[:2], a[:2, :2], alpha=2.0, beta=3.0, symmetrize_output=True), a)


WITHOUT_ROWS = {
    "qr": lambda x: (jnp.linalg.qr(x), jnp.linalg.qr(jnp.zeros((0, 3))), jnp.linalg.qr(jnp.zeros((3, 0)))),
    "eigh": lambda x: (jnp.linalg.eigh(x), jnp.linalg.eigvalsh(x + 0j)),
    "svd": lambda x: (jnp.linalg.svd(x + 0j), jnp.linalg.svd(jnp.zeros((0, 3))), jnp.linalg.svd(jnp.zeros((3, 0)))),
    "eig": jnp.linalg.eig,
    "schur": lambda x: jax.scipy.linalg.schur(x, output="complex"),
    "others": lambda x: (jnp.linalg.inv(x), jnp.linalg.det(x), jnp.linalg.cholesky(x), jax.scipy.linalg.lu(x)),
}


@pytest.mark.full
@pytest.mark.parametrize("name", WITHOUT_ROWS)
def test_matrices_without_rows(name):
    x = np.ones((2, 0, 0), np.float32)
    want, got = (jax.tree.leaves(v(WITHOUT_ROWS[name])(x)) for v in (jax.vmap, qd.vmap))
    for g, w in zip(got, want, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_array_equal(g, w)


@pytest.mark.parametrize("n", [3, 6, 7, pytest.param(12, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", ["equal", "clustered", "graded", "rank one", "scaled"])
@pytest.mark.parametrize("width", [np.float32, np.float64])
def test_eigenvectors_of_matrices_that_are_not_random(width, kind, n) -> None:
    """Rotations between equal eigenvalues have any angle: they must not keep sweeps from converging."""
    rng, count = np.random.default_rng(1), 256
    basis, k = np.linalg.qr(rng.normal(size=(count, n, n)))[0], np.arange(n)
    values = {
        "equal": np.where(k % 2, 1.0, -2.0),
        "clustered": 1 + 1e-5 * rng.normal(size=(count, 1, n)),
        "graded": np.logspace(-12, 0, n),
        "rank one": k == 0,
        "scaled": rng.normal(size=n),
    }[kind]
    a = (basis * values) @ adjoint(basis)
    if kind == "scaled":
        d = 10.0 ** rng.integers(-8, 8, (count, n))
        a *= d[:, :, None] * d[:, None]
    with jax.enable_x64(width is np.float64):
        a = ((a + adjoint(a)) / 2).astype(width)
        w, v = map(np.asarray, qd.vmap(jnp.linalg.eigh)(a))
    # The rotations of some six sweeps lose less than a rounding of the largest entry for each row, three with a margin.
    most = 3 * n * np.finfo(width).eps
    assert (abs(a @ v - v * w[:, None]).max((1, 2)) <= most * abs(a).max((1, 2))).all()
    assert abs(adjoint(v) @ v - np.eye(n)).max() <= most
    assert (np.diff(w) >= 0).all()


@pytest.mark.parametrize("name", ["svd", "eigh", "qr", "geqrf", "hessenberg"])
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_entries_of_what_is_written_out_are_moved_by_no_equation(name, dtype) -> None:
    params = {
        "svd": {"full_matrices": True, "compute_uv": True}, "eigh": {"lower": True}, "qr": {"full_matrices": True}
    }.get(name, {})  # fmt: skip
    known = decomposition_of(name)
    assert known is not None
    jaxpr = jax.make_jaxpr(lambda a: known.run(a, **params))(np.zeros((4, 4), dtype))
    assert all(e.primitive.name != "dynamic_update_slice" for e in compat.all_eqns(jaxpr.eqns))
    loops = jax.make_jaxpr(lambda a: known.run(a, **params))(np.zeros((7, 7), dtype))
    assert any(e.primitive.name == "dynamic_update_slice" for e in compat.all_eqns(loops.eqns))


@pytest.mark.full
@pytest.mark.parametrize("n", [3, 8])
def test_eigenvalues_of_what_is_no_number_are_none(n) -> None:
    a = np.array([np.eye(n), np.full((n, n), 2.0), np.eye(n)], np.float32)
    a[1, 1, 0] = a[1, 0, 1] = np.nan
    a[2, 1, 0] = a[2, 0, 1] = np.inf
    w, v = qd.vmap(jnp.linalg.eigh)(a)
    assert np.isnan(w[1:]).all()
    assert np.isnan(v[1:]).all()
    np.testing.assert_array_equal(w[0], np.ones(n))


def test_pairs_of_columns_have_one_trace(monkeypatch):
    """Six pairs of four columns are rotated alike; a trace of each took three times as long."""
    traced = []

    def counted(*given):
        traced.append(given)
        return rotated(*given)

    rotated = importlib.import_module("qdtrace.decompositions.jacobi")._rotated
    monkeypatch.setattr("qdtrace.decompositions.jacobi._rotated", counted)
    qd.jit(lambda x: qd.vmap(jnp.linalg.svd)(x)).lower(jnp.ones((2, 5, 4)))
    assert len(traced) <= 1
