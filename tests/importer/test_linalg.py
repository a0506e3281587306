"""Small dense linear algebra against NumPy in double precision."""

import jax
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
import pytest

from tests.importer.harness import check, imported

RNG = np.random.default_rng(5)
SIZES = [1, 3, 6]
DTYPES = [np.float32, np.float64]
# Backward stable methods: errors are a modest multiple of eps times the norm (1) and, for solves, the condition (< 20).
ULPS = 200


def matrices(n: int, dtype, m: int | None = None, count: int = 3) -> np.ndarray:
    """Random matrices of norm about one; square ones are well conditioned."""
    a = RNG.normal(size=(count, m or n, n))
    if m is None or m == n:
        u, _, v = np.linalg.svd(a)
        a = np.einsum("bij,j,bjk->bik", u, np.linspace(1, 0.2, n), v)
    return a.astype(dtype)


def close(got, want, dtype):
    np.testing.assert_allclose(got, want, rtol=0, atol=ULPS * np.finfo(dtype).eps)


@pytest.fixture(params=DTYPES, ids=["f32", "f64"])
def dtype(request):
    with jax.enable_x64(request.param is np.float64):
        yield request.param


@pytest.mark.parametrize("n", SIZES)
def test_inverse_solve_determinant(n, dtype):
    a, b = matrices(n, dtype), RNG.normal(size=(3, n)).astype(dtype)
    program = imported(lambda a, b: (jnp.linalg.inv(a), jnp.linalg.solve(a, b), jnp.linalg.det(a)), a, b)
    inverse, solution, determinant = program(a, b)
    wide = a.astype(np.float64)
    close(inverse, np.linalg.inv(wide), dtype)
    close(solution, np.linalg.solve(wide, b[..., None].astype(np.float64))[..., 0], dtype)
    close(determinant, np.linalg.det(wide), dtype)


@pytest.mark.parametrize("n", SIZES)
def test_cholesky_and_triangular_solves(n, dtype):
    a = matrices(n, dtype)
    spd = a @ a.transpose(0, 2, 1) + np.eye(n, dtype=dtype)
    b = RNG.normal(size=(3, n, 2)).astype(dtype)
    program = imported(lambda s, b: (jnp.linalg.cholesky(s), jsl.cho_solve((jsl.cholesky(s), False), b)), spd, b)
    factor, solution = program(spd, b)
    close(factor, np.linalg.cholesky(spd.astype(np.float64)), dtype)
    close(solution, np.linalg.solve(spd.astype(np.float64), b.astype(np.float64)), dtype)


@pytest.mark.parametrize(("n", "sides"), [(1, 65), (4, 16), (4, 17), (6, 12)])
def test_many_right_sides_of_small_systems(n, sides):
    a = matrices(n, np.float32) + 2 * np.eye(n, dtype=np.float32)
    b = RNG.normal(size=(3, n, sides)).astype(np.float32)

    def solve(a, b):
        left = jsl.solve_triangular(a + 0.5j, b, trans="C", lower=True)
        return left.real, left.imag, jax.lax.linalg.triangular_solve(a, b.T, left_side=False, transpose_a=True)

    check(solve, a, b)


@pytest.mark.parametrize("trans", [0, 1])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_triangular_solve_forms(trans, lower, unit):
    a = matrices(3, np.float32) + 2 * np.eye(3, dtype=np.float32)
    b = RNG.normal(size=(3, 3)).astype(np.float32)
    check(lambda a, b: jsl.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit), a, b)
    check(
        lambda a, b: jax.lax.linalg.triangular_solve(
            a, b[None], left_side=False, lower=lower, transpose_a=bool(trans), unit_diagonal=unit
        ),
        a, b,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(3, 3), (4, 2), (2, 4), (6, 6), (1, 3)])
@pytest.mark.parametrize("mode", ["reduced", "complete"])
def test_qr(shape, mode, dtype):
    m, n = shape
    a = matrices(n, dtype, m)
    q, r = imported(lambda a: jnp.linalg.qr(a, mode=mode), a)(a)
    want_q, want_r = (
        np.stack(z) for z in zip(*[np.linalg.qr(x.astype(np.float64), mode=mode) for x in a], strict=True)
    )
    close(q, want_q, dtype)
    close(r, want_r, dtype)


@pytest.mark.parametrize("n", SIZES)
def test_eigenvalues_of_symmetric_matrices(n, dtype):
    a = matrices(n, dtype)
    s = (a + a.transpose(0, 2, 1)) / 2
    w, v = imported(lambda s: jnp.linalg.eigh(s), s)(s)
    close(w, np.linalg.eigvalsh(s.astype(np.float64)), dtype)
    close(v @ v.transpose(0, 2, 1), np.broadcast_to(np.eye(n), s.shape), dtype)
    close(np.einsum("bij,bj,bkj->bik", v, w, v), s, dtype)


def test_eigenvalues_of_special_matrices():
    s = np.array(
        [np.zeros((3, 3)), np.eye(3), np.diag([3.0, 1.0, 2.0]), np.ones((3, 3)), 1e30 * np.ones((3, 3))], np.float32
    )
    w, v = imported(lambda s: jnp.linalg.eigh(s), s)(s)
    want = np.linalg.eigvalsh(s.astype(np.float64))
    assert np.all(np.abs(w - want) <= ULPS * 1.2e-7 * np.abs(want).max(-1, keepdims=True))
    close(v @ v.transpose(0, 2, 1), np.broadcast_to(np.eye(3), s.shape), np.float32)


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (6, 6), (4, 2), (2, 4)])
@pytest.mark.parametrize("full", [False, True])
def test_singular_values(shape, full, dtype):
    m, n = shape
    a = matrices(n, dtype, m)
    u, s, v = imported(lambda a: jnp.linalg.svd(a, full_matrices=full), a)(a)
    k = min(m, n)
    close(s, np.linalg.svd(a.astype(np.float64), compute_uv=False), dtype)
    close(np.einsum("bij,bj,bjk->bik", u[..., :k], s, v[:, :k]), a, dtype)
    for q in (u, v.transpose(0, 2, 1)):
        close(q.transpose(0, 2, 1) @ q, np.broadcast_to(np.eye(q.shape[2]), (3, q.shape[2], q.shape[2])), dtype)


def test_singular_values_of_rank_deficient_matrices():
    a = np.array(
        [
            np.zeros((3, 3)),
            np.ones((3, 3)),
            np.diag([1.0, 0.0, 2.0]),
            [[1, 2, 3], [2, 4, 6], [0, 0, 1]],
            1e-30 * np.eye(3),
        ],
        np.float32,
    )
    u, s, v = imported(lambda a: jnp.linalg.svd(a), a)(a)
    want = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    # A zero singular value comes out as rounding noise relative to the largest.
    assert np.all(np.abs(s - want) <= ULPS * 1.2e-7 * np.maximum(want[:, :1], 1e-37))
    eye = np.broadcast_to(np.eye(3), a.shape)
    close(u @ u.transpose(0, 2, 1), eye, np.float32)
    close(v @ v.transpose(0, 2, 1), eye, np.float32)


def test_singular_values_alone():
    a = matrices(3, np.float32)
    (s,) = imported(lambda a: jnp.linalg.svd(a, compute_uv=False), a)(a)
    close(s, np.linalg.svd(a, compute_uv=False), np.float32)


@pytest.mark.full
def test_pseudo_inverse_rank_condition_and_power():
    a = matrices(3, np.float32)
    check(lambda a: (jnp.linalg.pinv(a), jnp.linalg.matrix_power(a, 3), jnp.linalg.slogdet(a)), a, rtol=1e-4, atol=1e-4)
    check(lambda a: (jnp.linalg.cond(a), jnp.linalg.matrix_rank(a)), a, rtol=1e-4)


@pytest.mark.full
def test_matrix_exponential():
    check(lambda a: jsl.expm(a), matrices(2, np.float32), rtol=1e-4)


@pytest.mark.full
def test_batches_of_matrices():
    a = np.stack([matrices(2, np.float32), matrices(2, np.float32)], 1)
    check(lambda a: (jnp.linalg.inv(a), jnp.linalg.det(a)), a, rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_lu_and_permutation():
    check(lambda a: jsl.lu(a), matrices(4, np.float32), rtol=1e-4, atol=1e-5)
    check(lambda a: jsl.lu_solve(jsl.lu_factor(a), a[0]), matrices(3, np.float32), rtol=1e-4, atol=1e-4)


SPECIAL = np.array(
    [
        np.zeros((3, 3)), np.ones((3, 3)), -np.eye(3), np.diag([1.0, 0.0, 2.0]), np.diag([1.0, -2.0, 3.0]),
        [[1, 2, 3], [2, 4, 6], [0, 0, 1]], [[0, 1, 0], [1, 0, 0], [0, 0, 1]], [[4, 1, 0], [1, -3, 0], [0, 0, 1]],
        1e30 * np.eye(3), 1e-30 * np.eye(3), [[1, 1e-30, 0], [1e-30, 1, 0], [0, 0, 1]],
    ],
    np.float32,
)  # fmt: skip
"""Singular, indefinite, and of very large or small elements."""


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("kind", [np.float32, np.complex64], ids=["real", "complex"])
def test_special_matrices(size, kind):
    a = SPECIAL.astype(kind)
    if kind is np.complex64:
        a = a + 1j * (np.tril(SPECIAL, -1) - np.triu(SPECIAL, 1))
    wide = np.tile(np.eye(size, dtype=kind), (len(a), 1, 1))
    wide[:, :3, :3] = a

    def every(a):
        inverse = jnp.linalg.inv(a)
        return (
            jax.lax.linalg.cholesky(a), jax.lax.linalg.lu(a), jnp.linalg.det(a), jnp.linalg.slogdet(a),
            # NaN or an infinity, where there is none: kernels of LAPACK for other processors differ in that
            jnp.where(jnp.isfinite(inverse), inverse, jnp.nan), jnp.linalg.solve(a, jnp.ones(size)),
        )  # fmt: skip

    # the largest condition number without a NaN or an infinity in the result is 40; det of 1e30 overflows alike
    check(every, wide, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [3, 8])
def test_nan_stays_in_the_result(size):
    a = np.tile(np.eye(size, dtype=np.float32), (3, 1, 1))
    a[0, 0, 0] = a[1, 1, 2] = a[2, 2, 1] = np.nan
    det, inverse, solution = imported(
        lambda a: (jnp.linalg.det(a), jnp.linalg.inv(a), jnp.linalg.solve(a, jnp.ones(size))), a
    )(a)
    assert np.isnan(det).all()
    assert np.isnan(inverse).any((1, 2)).all()
    assert np.isnan(solution).any(1).all()


def test_signs_of_qr_with_a_tail_whose_squares_vanish():
    check(lambda a: jnp.linalg.qr(a), SPECIAL[-1:])


@pytest.mark.parametrize("size", [3, 8])
def test_pivots_of_complex_matrices_are_those_of_lapack(size):
    a = (RNG.normal(size=(20, size, size)) + 1j * RNG.normal(size=(20, size, size))).astype(np.complex64)
    check(lambda a: jax.lax.linalg.lu(a), a, rtol=1e-3, atol=1e-3)


@pytest.mark.full
@pytest.mark.parametrize(("count", "size"), [(3, 3), (3, 5), (8, 8)])
def test_pivots_in_any_order(count, size):
    pivots = RNG.integers(0, size, (20, count)).astype(np.int32)
    check(lambda p: jax.lax.linalg.lu_pivots_to_permutation(p, size), pivots)


@pytest.mark.full
def test_derivatives_of_linear_algebra():
    a = matrices(3, np.float32)
    check(
        lambda a: (jax.grad(lambda a: jnp.linalg.det(a))(a), jax.grad(lambda a: jnp.sum(jnp.linalg.inv(a)))(a)),
        a,
        rtol=1e-3,
        atol=1e-3,
    )


@pytest.mark.full
@pytest.mark.parametrize("n", [12])
def test_larger_matrices_are_loops(n):
    a = matrices(n, np.float32, count=2)
    program = check(lambda a: (a @ a, jnp.linalg.inv(a)), a, rtol=1e-3, atol=1e-4)
    assert program.count("mul") < 8 * n * n  # far from the n**3 products of an unrolled inverse


@pytest.mark.parametrize("n", [1, 4, 6])
def test_a_product_made_by_loops_is_eliminated_as_scalars(n):
    """Steps of the elimination are no loops over memory, as the product is."""
    a, b = matrices(12, np.float32, n), matrices(12, np.float32)

    def factors(a, b):
        return jax.lax.linalg.lu(a @ b @ a.T)[:2]

    program = check(factors, a, b, rtol=1e-3, atol=1e-4, budget=64)
    product = imported(lambda a, b: a @ b @ a.T, a, b, budget=64)
    assert program.count("for") <= product.count("for") + 3


@pytest.mark.full
def test_larger_factorisations():
    a = matrices(8, np.float32, count=2)
    spd = a @ a.transpose(0, 2, 1) + np.eye(8, dtype=np.float32)
    check(lambda s: jnp.linalg.cholesky(s), spd, rtol=1e-4, atol=1e-5)
    w, v = imported(lambda s: jnp.linalg.eigh(s), spd)(spd)
    close(w, np.linalg.eigvalsh(spd.astype(np.float64)), np.float32)
    close(np.einsum("bij,bj,bkj->bik", v, w, v), spd, np.float32)


def test_thirty_two_wide_network():
    w1, w2 = (RNG.normal(size=(32, k)).astype(np.float32) / 6 for k in (4, 32))
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    program = check(lambda x: jnp.tanh(jnp.asarray(w2) @ jnp.tanh(jnp.asarray(w1) @ x)), x)
    assert program.count() < 600
