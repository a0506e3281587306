"""Small dense linear algebra as jnp functions: up to 6x6 the steps are written out, above that they are loops.

LU with partial pivoting, Cholesky, Householder QR; symmetric eigenvalues by cyclic Jacobi rotations and singular
values by one-sided Jacobi (Hestenes) with a fixed number of sweeps, so that all lanes take the same path.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.errors import UnsupportedError
from qdtrace.trace.importer.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Callable

_ALGORITHM = "it chooses among ways to the same result"
UNROLLED = 6
"""Steps over at most this many rows or columns are written out."""


def _batched(core: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Maps a function of matrices (or of operands of rank `core`) over leading axes."""

    def wrap(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*operands: Any, **params: Any) -> Any:
            mapped = functools.partial(fn, **params)
            for _ in range(operands[0].ndim - core):
                mapped = jax.vmap(mapped)
            return mapped(*operands)

        return run

    return wrap


def steps(count: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """`fori_loop`, written out when short; `body` sees a Python int then."""
    if count <= UNROLLED:
        for k in range(count):
            state = body(k, state)
        return state
    return lax.fori_loop(0, count, body, state)


def _outer(u: Any, v: Any) -> Any:
    """u v^T as a contraction, in which constant zeros cost nothing (see `contraction`)."""
    return lax.dot_general(u[:, None], v[None, :], (((1,), (0,)), ((), ())))


def _conj(x: Any) -> Any:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


def _real_only(name: str, a: Any) -> None:
    if jnp.iscomplexobj(a):
        raise UnsupportedError(f"`{name}` in a loop body needs a real matrix, got {a.dtype}",
                               help="compute it outside of the loop")  # fmt: skip


@decomposition("lu")
@_batched(2)
def lu(a: Any) -> Any:
    """(factors, pivots, permutation) with partial pivoting."""
    m, n = a.shape
    rows = jnp.arange(m, dtype=jnp.int32)

    def step(k: Any, state: Any) -> Any:
        a, pivots, permutation = state
        if isinstance(k, int):
            p = (jnp.argmax(jnp.abs(a[k:, k])) + k).astype(jnp.int32)
        else:
            p = jnp.argmax(jnp.where(rows >= k, jnp.abs(a[:, k]), -1)).astype(jnp.int32)
        a, permutation = _swap(a, k, p), _swap(permutation, k, p)
        pivots = pivots.at[k].set(p)
        below = rows > k
        factor = jnp.where(below, a[:, k] / a[k, k], jnp.zeros_like(a[:, k]))
        right = jnp.where(jnp.arange(n) > k, a[k], jnp.zeros_like(a[k]))
        a = a - _outer(factor, right)
        return a.at[:, k].set(jnp.where(below, factor, a[:, k])), pivots, permutation

    count = min(m, n)
    return steps(count, step, (a, jnp.zeros(count, jnp.int32), rows))


def _swap(a: Any, k: Any, p: Any) -> Any:
    """Rows k and p exchanged."""
    if isinstance(k, int):
        top = a[k]
        for i in range(k + 1, a.shape[0]):
            hit = p == i
            row = a[i]
            a = a.at[i].set(jnp.where(hit, top, row))
            a = a.at[k].set(jnp.where(hit, row, a[k]))
        return a
    upper, lower = a[k], a[p]
    return a.at[k].set(lower).at[p].set(upper)


@decomposition("lu_pivots_to_permutation")
@_batched(1)
def lu_pivots_to_permutation(pivots: Any, *, permutation_size: int) -> Any:
    """Row exchanges as a permutation."""
    return steps(pivots.shape[0], lambda k, p: _swap(p, k, pivots[k]), jnp.arange(permutation_size, dtype=pivots.dtype))


@decomposition("cholesky")
@_batched(2)
def cholesky(a: Any) -> Any:
    """Lower factor, column by column; NaN when not positive definite."""
    n = a.shape[0]
    rows = jnp.arange(n)

    def step(k: Any, lower: Any) -> Any:
        column = a[:, k] - lower @ _conj(lower[k])
        root = jnp.sqrt(column[k].real if jnp.iscomplexobj(column) else column[k])
        scaled = jnp.where(rows > k, column / root, jnp.zeros_like(column))
        return lower.at[:, k].set(jnp.where(rows == k, root.astype(a.dtype), scaled))

    return steps(n, step, jnp.zeros_like(a))


@decomposition("triangular_solve")
@_batched(2)
def triangular_solve(
    a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    """Substitution, row by row."""
    if conjugate_a:
        a = _conj(a)
    if transpose_a:
        a, lower = a.T, not lower
    if not left_side:
        a, b, lower = a.T, b.T, not lower
    n = a.shape[0]

    def step(k: Any, x: Any) -> Any:
        i = k if lower else n - 1 - k
        if isinstance(i, int):
            known = slice(0, i) if lower else slice(i + 1, n)
            row = b[i] - a[i, known] @ x[known] if known.start < known.stop else b[i]
        else:
            others = jnp.where(jnp.arange(n) == i, jnp.zeros_like(a[i]), a[i])
            row = b[i] - others @ x
        return x.at[i].set(row if unit_diagonal else row / a[i, i])

    x = steps(n, step, jnp.zeros_like(b))
    return x if left_side else x.T


def _reflect(a: Any, q: Any, k: Any) -> tuple[Any, Any, Any]:
    """One Householder step: column k of `a` below the diagonal becomes zero, `q` collects the reflections."""
    m = a.shape[0]
    rows = jnp.arange(m)
    column = jnp.where(rows >= k, a[:, k], jnp.zeros_like(a[:, k]))
    tail = jnp.where(rows > k, column, jnp.zeros_like(column))
    largest = jnp.max(jnp.abs(column))
    scale = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    alpha, rest = column[k] / scale, jnp.sum((tail / scale) ** 2)
    norm = jnp.sqrt(alpha * alpha + rest)
    flat = rest == 0
    beta = jnp.where(flat, alpha, jnp.where(alpha >= 0, -norm, norm))
    head = jnp.where(flat, jnp.ones_like(alpha), alpha - beta)
    v = jnp.where(rows == k, jnp.ones_like(column), (tail / scale) / head)
    v = jnp.where(rows >= k, v, jnp.zeros_like(v))
    tau = jnp.where(flat, jnp.zeros_like(beta), (beta - alpha) / jnp.where(flat, jnp.ones_like(beta), beta))
    a = a - _outer(tau * v, v @ a)
    a = a.at[:, k].set(jnp.where(rows > k, jnp.zeros_like(column), jnp.where(rows == k, beta * scale, a[:, k])))
    return a, q - _outer(q @ v, tau * v), beta * scale


@decomposition("qr", assumes={"pivoting": False}, ignores={"use_magma": "it chooses a library for GPUs"})
@_batched(2)
def qr(a: Any, *, full_matrices: bool) -> Any:
    """(Q, R) by Householder reflections, signs as in LAPACK."""
    _real_only("qr", a)
    m, n = a.shape
    q, r = jnp.eye(m, dtype=a.dtype), a

    def step(k: Any, state: Any) -> Any:
        r, q = state
        r, q, _ = _reflect(r, q, k)
        return r, q

    r, q = steps(min(m - 1, n) if m > 1 else 0, step, (r, q))
    kept = m if full_matrices else min(m, n)
    return q[:, :kept], jnp.triu(r[:kept])


def _sweeps(n: int, dtype: Any) -> int:
    """Cyclic Jacobi converges quadratically; enough for the last bit at these sizes."""
    single = 5 if n <= 3 else 7 if n <= 6 else 10
    return single + (3 if jnp.finfo(dtype).bits == 64 else 0)


def _rotation(difference: Any, twice: Any) -> tuple[Any, Any]:
    """(cosine, sine) of the rotation that zeroes an off-diagonal entry: cot(2 angle) = difference / twice."""
    zero = twice == 0
    theta = difference / jnp.where(zero, jnp.ones_like(twice), twice)
    t = jnp.where(theta >= 0, 1, -1).astype(theta.dtype) / (jnp.abs(theta) + jnp.hypot(theta, jnp.ones_like(theta)))
    t = jnp.where(zero, jnp.zeros_like(t), t)
    c = lax.rsqrt(t * t + 1)
    return c, t * c


def _turn(a: Any, p: Any, q: Any, c: Any, s: Any) -> Any:
    """Columns p and q of `a` rotated."""
    x, y = a[:, p], a[:, q]
    return a.at[:, p].set(c * x - s * y).at[:, q].set(s * x + c * y)


def _sweep(n: int, rotate: Callable[[Any, Any, Any], Any], state: Any) -> Any:
    """`rotate(p, q, state)` for every pair of columns."""
    if n <= UNROLLED:
        for p in range(n - 1):
            for q in range(p + 1, n):
                state = rotate(p, q, state)
        return state
    first, second = np.triu_indices(n, 1)
    ps, qs = jnp.asarray(first, jnp.int32), jnp.asarray(second, jnp.int32)
    return lax.fori_loop(0, len(first), lambda k, s: rotate(ps[k], qs[k], s), state)


def _sorted_columns(key: Any, *matrices: Any) -> list[Any]:
    """Keys upwards, columns of the matrices with them."""
    rows = [m[i] for m in matrices for i in range(m.shape[0])]
    out = lax.sort((key, *rows), num_keys=1)
    result, at = [out[0]], 1
    for m in matrices:
        result.append(jnp.stack(out[at : at + m.shape[0]]))
        at += m.shape[0]
    return result


@decomposition(
    "eigh",
    assumes={"subset_by_index": None},
    ignores={"sort_eigenvalues": "they are sorted in any case", "algorithm": _ALGORITHM},
)
@_batched(2)
def eigh(a: Any, *, lower: bool) -> Any:
    """(eigenvectors, eigenvalues upwards) of a symmetric matrix by cyclic Jacobi rotations."""
    _real_only("eigh", a)
    n = a.shape[0]
    half = jnp.tril(a, -1) if lower else jnp.triu(a, 1).T
    a = half + half.T + jnp.diag(jnp.diag(a))
    if n == 1:
        return jnp.ones_like(a), a[0]

    def rotate(p: Any, q: Any, state: Any) -> Any:
        a, v = state
        c, s = _rotation(a[q, q] - a[p, p], 2 * a[p, q])
        a = _turn(_turn(a, p, q, c, s).T, p, q, c, s)
        return a, _turn(v, p, q, c, s)

    state = (a, jnp.eye(n, dtype=a.dtype))
    a, v = lax.fori_loop(0, _sweeps(n, a.dtype), lambda _, s: _sweep(n, rotate, s), state)
    w, v = _sorted_columns(jnp.diag(a), v)
    return v, w


@decomposition("svd", assumes={"subset_by_index": None}, ignores={"algorithm": _ALGORITHM})
@_batched(2)
def svd(a: Any, *, full_matrices: bool, compute_uv: bool) -> Any:
    """(singular values downwards, U, V^T) by one-sided Jacobi; U from a QR of the rotated columns, so that it is
    orthogonal for a singular matrix too."""
    _real_only("svd", a)
    if a.shape[0] < a.shape[1]:
        s, u, v = _tall_svd(a.T, full_matrices, compute_uv)
        return (s, v, u.T) if compute_uv else (s,)
    s, u, v = _tall_svd(a, full_matrices, compute_uv)
    return (s, u, v.T) if compute_uv else (s,)


def _tall_svd(a: Any, full: bool, vectors: bool) -> tuple[Any, Any, Any]:
    m, n = a.shape
    largest = jnp.max(jnp.abs(a))
    scale = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    a = a / scale

    def rotate(p: Any, q: Any, state: Any) -> Any:
        a, v = state
        x, y = a[:, p], a[:, q]
        c, s = _rotation(jnp.vdot(y, y) - jnp.vdot(x, x), 2 * jnp.vdot(x, y))
        return _turn(a, p, q, c, s), _turn(v, p, q, c, s)

    state = (a, jnp.eye(n, dtype=a.dtype))
    if n > 1:
        state = lax.fori_loop(0, _sweeps(n, a.dtype), lambda _, s: _sweep(n, rotate, s), state)
    a, v = state
    # Squares of small columns underflow; norms relative to the largest entry of the column do not.
    tops = jnp.max(jnp.abs(a), axis=0)
    safe = jnp.where(tops > 0, tops, jnp.ones_like(tops))
    norms = tops * jnp.sqrt(jnp.sum((a / safe) ** 2, axis=0))
    if not vectors:
        (falling,) = lax.sort((-norms,), num_keys=1)
        return -falling * scale, a, v
    falling, a, v = _sorted_columns(-norms, a, v)
    u = jnp.eye(m, dtype=a.dtype)
    signs = jnp.ones(n, a.dtype)

    def step(k: Any, state: Any) -> Any:
        r, u, signs = state
        r, u, diagonal = _reflect(r, u, k)
        return r, u, signs.at[k].set(jnp.where(diagonal < 0, -1, 1).astype(signs.dtype))

    _, u, signs = steps(n, step, (a, u, signs))
    if full and m > n:
        signs = jnp.concatenate([signs, jnp.ones(m - n, a.dtype)])
    else:
        u = u[:, :n]
    return -falling * scale, u * signs, v
