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

from qdtrace.trace.importer.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Callable

_ALGORITHM = "it chooses among ways to the same result"
UNROLLED = 6
"""Steps over at most this many rows or columns are written out."""


def batched(core: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
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


def outer(u: Any, v: Any) -> Any:
    """u v^T as a contraction, in which constant zeros cost nothing (see `contraction`)."""
    return lax.dot_general(u[:, None], v[None, :], (((1,), (0,)), ((), ())))


def _pivot_size(x: Any) -> Any:
    """What LAPACK compares to find a pivot: |re| + |im|, which is cheaper than the modulus."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def conj(x: Any) -> Any:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


@decomposition("lu")
@batched(2)
def lu(a: Any) -> Any:
    """(factors, pivots, permutation) with partial pivoting; a column of zeros is left as it is, as by LAPACK."""
    m, n = a.shape
    rows = jnp.arange(m, dtype=jnp.int32)

    def step(k: Any, state: Any) -> Any:
        a, pivots, permutation = state
        if isinstance(k, int):
            p = (jnp.argmax(_pivot_size(a[k:, k])) + k).astype(jnp.int32)
        else:
            p = jnp.argmax(jnp.where(rows >= k, _pivot_size(a[:, k]), -1)).astype(jnp.int32)
        a, permutation = swap(a, k, p), swap(permutation, k, p)
        pivots = pivots.at[k].set(p)
        below = rows > k
        pivot = jnp.where(a[k, k] == 0, jnp.ones_like(a[k, k]), a[k, k])
        factor = jnp.where(below, a[:, k] / pivot, jnp.zeros_like(a[:, k]))
        right = jnp.where(jnp.arange(n) > k, a[k], jnp.zeros_like(a[k]))
        a = a - outer(factor, right)
        return a.at[:, k].set(jnp.where(below, factor, a[:, k])), pivots, permutation

    count = min(m, n)
    return steps(count, step, (a, jnp.zeros(count, jnp.int32), rows))


def swap(a: Any, k: Any, p: Any, *, any_order: bool = False) -> Any:
    """Rows k and p exchanged; p is not less than k unless they are in any order."""
    if isinstance(k, int) and not any_order:
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
@batched(1)
def lu_pivots_to_permutation(pivots: Any, *, permutation_size: int) -> Any:
    """Row exchanges, one after the other, as a permutation."""
    exchange = lambda k, rows: swap(rows, k, pivots[k], any_order=True)  # noqa: E731
    return steps(pivots.shape[0], exchange, jnp.arange(permutation_size, dtype=pivots.dtype))


@decomposition("cholesky")
@batched(2)
def cholesky(a: Any) -> Any:
    """Lower factor, column by column; NaN everywhere when a pivot is zero or negative, as in JAX."""
    n = a.shape[0]
    rows = jnp.arange(n)

    def step(k: Any, state: Any) -> Any:
        lower, definite = state
        column = a[:, k] - lower @ conj(lower[k])
        square = column[k].real
        root = jnp.sqrt(square)
        scaled = jnp.where(rows > k, column / root, jnp.zeros_like(column))
        return lower.at[:, k].set(jnp.where(rows == k, root.astype(a.dtype), scaled)), definite & ~(square <= 0)

    lower, definite = steps(n, step, (jnp.zeros_like(a), jnp.asarray(True)))
    nothing = complex(np.nan, np.nan) if jnp.iscomplexobj(a) else np.nan
    return jnp.where(definite, lower, jnp.full_like(a, nothing))


@decomposition("triangular_solve")
@batched(2)
def triangular_solve(
    a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    """Substitution, row by row."""
    if conjugate_a:
        a = conj(a)
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


def reflector(column: Any, k: Any) -> tuple[Any, Any, Any]:
    """(v, tau, beta) of the reflection 1 - tau v v^H whose adjoint turns a column into (kept, beta, 0, ...).

    v is one at k and zero above, beta is real; signs are those of LAPACK.
    """
    rows = jnp.arange(column.shape[0])
    column = jnp.where(rows >= k, column, jnp.zeros_like(column))
    tail = jnp.where(rows > k, column, jnp.zeros_like(column))
    largest = jnp.max(_size(column))
    scale = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    alpha, tail = column[k] / scale, tail / scale
    rest = jnp.sum(_squared(tail))
    norm = jnp.sqrt(_squared(alpha) + rest)
    flat = jnp.all(tail == 0)  # one whose squares vanish still turns the sign, as in LAPACK
    if jnp.iscomplexobj(alpha):
        flat = flat & (alpha.imag == 0)
    beta = jnp.where(flat, alpha.real, -jnp.copysign(norm, alpha.real))
    head = jnp.where(flat, jnp.ones_like(alpha), alpha - beta)
    v = jnp.where(rows == k, jnp.ones_like(column), tail / head)
    v = jnp.where(rows >= k, v, jnp.zeros_like(v))
    tau = jnp.where(flat, jnp.zeros_like(alpha), (beta - alpha) / jnp.where(flat, jnp.ones_like(beta), beta))
    return v, tau, beta * scale


def _size(x: Any) -> Any:
    """The larger part of a complex number, the size of a real one."""
    return jnp.maximum(jnp.abs(x.real), jnp.abs(x.imag)) if jnp.iscomplexobj(x) else jnp.abs(x)


def _squared(x: Any) -> Any:
    return x.real * x.real + x.imag * x.imag if jnp.iscomplexobj(x) else x * x


def reflected(v: Any, tau: Any, a: Any) -> Any:
    """(1 - tau v v^H) a; the adjoint for a conjugate tau."""
    return a - outer(tau * v, conj(v) @ a)


def reflected_from_right(v: Any, tau: Any, a: Any) -> Any:
    """a (1 - tau v v^H)."""
    return a - outer(a @ v, tau * conj(v))


def _reflect(a: Any, q: Any, k: Any) -> tuple[Any, Any, Any]:
    """One Householder step: column k of `a` below the diagonal becomes zero, `q` collects the reflections."""
    rows = jnp.arange(a.shape[0])
    v, tau, beta = reflector(a[:, k], k)
    a = reflected(v, conj(tau), a)
    column = jnp.where(rows > k, jnp.zeros_like(v), jnp.where(rows == k, beta.astype(a.dtype), a[:, k]))
    return a.at[:, k].set(column), reflected_from_right(v, tau, q), beta


@decomposition("qr", ignores={"use_magma": "it chooses a library for GPUs"})
@batched(2)
def qr(a: Any, *, full_matrices: bool, pivoting: bool = False) -> Any:
    """(Q, R) by Householder reflections, signs as in LAPACK; with pivoting also the order of columns."""
    m, n = a.shape
    order = jnp.arange(n, dtype=jnp.int32)
    # the last row of a complex matrix is turned until its diagonal entry is real
    count = min(m if jnp.iscomplexobj(a) else m - 1, n)

    def step(k: Any, state: Any) -> Any:
        r, q, order = state
        if pivoting:
            p = largest_column(r, k)
            r, order = swap(r.T, k, p).T, swap(order, k, p)
        r, q, _ = _reflect(r, q, k)
        return r, q, order

    r, q, order = steps(min(m, n) if pivoting else count, step, (a, jnp.eye(m, dtype=a.dtype), order))
    kept = m if full_matrices else min(m, n)
    result = q[:, :kept], jnp.triu(r[:kept])
    return (*result, order) if pivoting else result


def largest_column(a: Any, k: Any) -> Any:
    """The column from k on that is longest below row k."""
    m, n = a.shape
    below = jnp.where((jnp.arange(m) >= k)[:, None], a, jnp.zeros_like(a))
    largest = jnp.max(_size(below))
    below = below / jnp.where(largest > 0, largest, jnp.ones_like(largest))
    lengths = jnp.where(jnp.arange(n) >= k, jnp.sum(_squared(below), 0), -1)
    return jnp.argmax(lengths).astype(jnp.int32)


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


def _phase(x: Any) -> tuple[Any, Any]:
    """(size, conjugate direction) of a number; a real one is left as it is, in direction None."""
    if not jnp.iscomplexobj(x):
        return x, None
    size = jnp.abs(x)
    zero = size == 0
    direction = conj(x) / jnp.where(zero, jnp.ones_like(size), size)
    return size, jnp.where(zero, jnp.ones_like(x), direction)


def _turn(a: Any, p: Any, q: Any, c: Any, s: Any, direction: Any) -> Any:
    """Columns p and q of `a` rotated, column q multiplied by a direction before."""
    x, y = a[:, p], a[:, q]
    y = y if direction is None else y * direction
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
    if any(map(jnp.iscomplexobj, matrices)):
        parts = [p for m in matrices for p in (m.real, m.imag)]
        key, *parts = _sorted_columns(key, *parts)
        return [key, *(lax.complex(*parts[k : k + 2]) for k in range(0, len(parts), 2))]
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
@batched(2)
def eigh(a: Any, *, lower: bool) -> Any:
    """(eigenvectors, eigenvalues upwards) of a Hermitian matrix by cyclic Jacobi rotations."""
    n = a.shape[0]
    half = jnp.tril(a, -1) if lower else conj(jnp.triu(a, 1)).T
    a = half + conj(half).T + jnp.diag(jnp.diag(a).real.astype(a.dtype))
    if n == 1:
        return jnp.ones_like(a), a[0].real

    def rotate(p: Any, q: Any, state: Any) -> Any:
        a, v = state
        size, direction = _phase(a[p, q])
        c, s = _rotation((a[q, q] - a[p, p]).real, 2 * size)
        a = _turn(conj(_turn(a, p, q, c, s, direction)).T, p, q, c, s, direction)
        return a, _turn(v, p, q, c, s, direction)

    state = (a, jnp.eye(n, dtype=a.dtype))
    a, v = lax.fori_loop(0, _sweeps(n, a.dtype), lambda _, s: _sweep(n, rotate, s), state)
    w, v = _sorted_columns(jnp.diag(a).real, v)
    return v, w


@decomposition("svd", assumes={"subset_by_index": None}, ignores={"algorithm": _ALGORITHM})
@batched(2)
def svd(a: Any, *, full_matrices: bool, compute_uv: bool) -> Any:
    """(singular values downwards, U, V^H) by one-sided Jacobi; U from a QR of the rotated columns, so that it is
    orthogonal for a singular matrix too."""
    if a.shape[0] < a.shape[1]:
        s, u, v = _tall_svd(conj(a).T, full_matrices, compute_uv)
        return (s, v, conj(u).T) if compute_uv else (s,)
    s, u, v = _tall_svd(a, full_matrices, compute_uv)
    return (s, u, conj(v).T) if compute_uv else (s,)


def _tall_svd(a: Any, full: bool, vectors: bool) -> tuple[Any, Any, Any]:
    m, n = a.shape
    largest = jnp.max(_size(a))
    scale = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    a = a / scale

    def rotate(p: Any, q: Any, state: Any) -> Any:
        a, v = state
        x, y = a[:, p], a[:, q]
        size, direction = _phase(jnp.vdot(x, y))
        c, s = _rotation(jnp.sum(_squared(y)) - jnp.sum(_squared(x)), 2 * size)
        return _turn(a, p, q, c, s, direction), _turn(v, p, q, c, s, direction)

    state = (a, jnp.eye(n, dtype=a.dtype))
    if n > 1:
        state = lax.fori_loop(0, _sweeps(n, a.dtype), lambda _, s: _sweep(n, rotate, s), state)
    a, v = state
    # Squares of small columns underflow; norms relative to the largest entry of the column do not.
    tops = jnp.max(_size(a), axis=0)
    safe = jnp.where(tops > 0, tops, jnp.ones_like(tops))
    norms = tops * jnp.sqrt(jnp.sum(_squared(a / safe), axis=0))
    if not vectors:
        (falling,) = lax.sort((-norms,), num_keys=1)
        return -falling * scale, a, v
    falling, a, v = _sorted_columns(-norms, a, v)
    u = jnp.eye(m, dtype=a.dtype)
    signs = jnp.ones(n, norms.dtype)

    def step(k: Any, state: Any) -> Any:
        r, u, signs = state
        r, u, diagonal = _reflect(r, u, k)
        return r, u, signs.at[k].set(jnp.where(diagonal < 0, -1, 1).astype(signs.dtype))

    _, u, signs = steps(n, step, (a, u, signs))
    if full and m > n:
        signs = jnp.concatenate([signs, jnp.ones(m - n, signs.dtype)])
    else:
        u = u[:, :n]
    return -falling * scale, u * signs, v
