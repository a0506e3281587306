"""Eigenvalues of Hermitian matrices and singular values by Jacobi rotations.

Rotations are cyclic. Those for eigenvalues act on the upper half; those for singular values from one side (Hestenes),
in a fixed number of sweeps, so that all lanes take the same path.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from qdtrace.decompositions.entries import (
    UNROLLED,
    apart,
    at,
    entries_of,
    is_short,
    loops,
    put,
    real_dtype,
    short,
    whole,
    with_columns,
    with_pair,
)
from qdtrace.decompositions.householder import product, triangle
from qdtrace.decompositions.linalg import conj, largest_part, squared
from qdtrace.trace.importer.registry import batched, decomposition

if TYPE_CHECKING:
    from collections.abc import Callable

    from qdtrace.decompositions.entries import Each

MOST_SWEEPS = 15
"""Sweeps of rotations after which entries off the diagonal are taken for rounding: some six are usual."""
_ALGORITHM = "it chooses among ways to the same result"


def _sweeps(n: int, dtype: Any) -> int:
    """Returns the number of sweeps for the last bit at these sizes; cyclic Jacobi converges quadratically."""
    single = 5 if n <= 3 else 7 if n <= 6 else 10
    return single + (3 if jnp.finfo(dtype).bits == 64 else 0)


def _rotation(difference: Any, twice: Any, least: Any = 0) -> tuple[Any, Any, Any]:
    """Returns (cosine, sine, tangent) of the rotation that zeroes an off-diagonal entry: cot(2 angle) = difference /
    twice; of none if `twice` is at most `least`."""
    zero = jnp.abs(twice) <= least
    theta = difference / jnp.where(zero, jnp.ones_like(twice), twice)
    t = jnp.where(theta >= 0, 1, -1).astype(theta.dtype) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1))
    t = jnp.where(zero, jnp.zeros_like(t), t)
    c = lax.rsqrt(t * t + 1)
    return c, t * c, t


def _phase(x: Any) -> tuple[Any, Any]:
    """Returns (size, conjugate direction) of a number; a real one is left as it is, in direction None."""
    if not jnp.iscomplexobj(x):
        return x, None
    size = jnp.abs(x)
    zero = size == 0
    direction = conj(x) / jnp.where(zero, jnp.ones_like(size), size)
    return size, jnp.where(zero, jnp.ones_like(x), direction)


def _turn(each: Each, a: Any, p: Any, q: Any, c: Any, s: Any, direction: Any) -> Any:
    """Rotates columns p and q of `a`, column q multiplied by a direction before."""

    def turned(x: Any, y: Any) -> tuple[Any, Any]:
        y = y if direction is None else y * direction
        return c * x - s * y, s * x + c * y

    return with_columns(each, a, (0, a.shape[0]), p, q, turned)


def _products(each: Each, a: Any, p: Any, q: Any) -> tuple[Any, Any]:
    """Returns the inner product of columns p and q, and by how much q is longer, squared."""

    def entry(i: Any, sums: Any) -> Any:
        x, y = at(a, i, p), at(a, i, q)
        return sums[0] + conj(x) * y, sums[1] + squared(x), sums[2] + squared(y)

    zero = jnp.zeros((), real_dtype(a))
    product, first, second = each(0, a.shape[0], entry, (jnp.zeros((), a.dtype), zero, zero))
    return product, second - first


def _rotated(each: Each, p: Any, q: Any, a: Any, v: Any) -> tuple[Any, Any]:
    """Rotates columns p and q of both matrices until those of the first one are orthogonal."""
    product, difference = _products(each, a, p, q)
    size, direction = _phase(product)
    c, s, _ = _rotation(difference, 2 * size)
    return _turn(each, a, p, q, c, s, direction), _turn(each, v, p, q, c, s, direction)


@partial(jax.jit, inline=True)  # all pairs of columns have one trace
def _rotated_pair(a: Any, v: Any) -> tuple[Any, Any]:
    """Rotates the only two columns of both matrices, which are rows of numbers."""
    a, v = _rotated(loops(True), 0, 1, entries_of(a), entries_of(v))
    return a.numbers.tolist(), v.numbers.tolist()


def _sorted_columns(key: Any, *matrices: Any) -> list[Any]:
    """Sorts keys upwards, columns of the matrices with them."""
    if not all(map(is_short, matrices)):
        found, order = lax.sort((key, jnp.arange(key.shape[0])), num_keys=1)  # of the type of indices of loops
        return [found, *(_in_order(m, order) for m in matrices)]
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


def _in_order(m: Any, order: Any) -> Any:
    """Returns the columns of a matrix in an order that differs from lane to lane."""

    def column(j: Any, out: Any) -> Any:
        k = at(order, j)
        return lax.fori_loop(0, m.shape[0], lambda i, out: put(out, at(m, i, k), i, j), out)

    return lax.fori_loop(0, m.shape[1], column, jnp.zeros_like(m))


@decomposition(
    "eigh",
    assumes={"subset_by_index": None},
    ignores={"sort_eigenvalues": "they are sorted in any case", "algorithm": _ALGORITHM},
)
@batched(2)
def eigh(a: Any, *, lower: bool) -> Any:
    """Returns (eigenvectors, eigenvalues upwards) of a Hermitian matrix by cyclic Jacobi rotations."""
    found, vectors = eigenpairs(conj(jnp.tril(a)).T if lower else jnp.triu(a))
    w, v = _sorted_columns(found, vectors.T)
    return v, w


def eigenpairs(a: Any) -> tuple[Any, Any]:
    """Returns the eigenvalues of a Hermitian matrix in no order, and a row for the vector of each; NaN where one entry
    is no finite number. The lower half is not read.

    A sweep in which all entries off the diagonal were rounding is the last; a few short sweeps are not worth the
    question in f32.
    """
    n, dtype, each = a.shape[0], a.real.dtype, loops(is_short(a))
    scale = jnp.max(largest_part(a), initial=0)
    is_finite = jnp.isfinite(scale)
    # Rounding is not rotated: between equal eigenvalues its angle is any, and sweeps would not converge.
    least = scale * (jnp.finfo(dtype).eps / 4)

    def sweep(state: Any) -> Any:
        count, _, a, vectors = state
        state = jnp.zeros((), dtype), short(a), short(vectors)
        number, found = count + 1, _pairs(each, n, lambda p, q, s: _zeroed(p, q, least, *s), state)
        return number, *map(whole, found)

    off = jnp.where(is_finite & (n > 1), scale, 0)
    state = jnp.int32(0), off, a, jnp.eye(n, dtype=a.dtype)
    if n <= UNROLLED and jnp.finfo(dtype).bits < 64:
        _, _, a, vectors = lax.fori_loop(0, _sweeps(n, dtype), lambda _, s: sweep(s), state)
    else:
        _, _, a, vectors = lax.while_loop(lambda s: (s[1] > least) & (s[0] < MOST_SWEEPS), sweep, state)
    return jnp.where(is_finite, jnp.diag(a).real, jnp.nan), jnp.where(is_finite, vectors, jnp.nan)


def _pairs(each: Each, n: int, body: Callable[[Any, Any, Any], Any], state: Any) -> Any:
    """Runs `body(p, q, state)` for each pair of columns, the first column outermost."""
    return each(0, n - 1, lambda p, s: each(p + 1, n, lambda q, s: body(p, q, s), s), state)


def _zeroed(p: Any, q: Any, least: Any, off: Any, a: Any, vectors: Any) -> tuple[Any, Any, Any]:
    """Makes entry (p, q) of the upper half zero; `off` is the largest one that was met."""
    n, each = a.shape[0], loops(is_short(a))
    x, y = at(a, p, p).real, at(a, q, q).real
    size, direction = _phase(at(a, p, q))
    c, s, t = _rotation(y - x, 2 * size, 2 * least)

    def turned(first: Any, second: Any, is_row: bool, m: Any) -> Any:
        u, v = at(m, *first), at(m, *second)
        if direction is not None:
            v = v * (conj(direction) if is_row else direction)
        return put(put(m, c * u - s * v, *first), s * u + c * v, *second)

    def between(k: Any, m: Any) -> Any:
        u, v = at(m, p, k), conj(at(m, k, q))
        if direction is not None:
            v = v * conj(direction)
        return put(put(m, c * u - s * v, p, k), conj(s * u + c * v), k, q)

    a = each(0, p, lambda k, m: turned((k, p), (k, q), False, m), a)
    a = each(p + 1, q, between, a)
    a = each(q + 1, n, lambda k, m: turned((p, k), (q, k), True, m), a)
    x, y = (x - t * size).astype(a.dtype), (y + t * size).astype(a.dtype)
    a = put(put(put(a, x, p, p), y, q, q), jnp.zeros((), a.dtype), p, q)
    vectors = each(0, n, lambda k, m: turned((p, k), (q, k), False, m), vectors)
    return jnp.maximum(off, jnp.abs(size)), a, vectors


@decomposition("svd", assumes={"subset_by_index": None}, ignores={"algorithm": _ALGORITHM})
@batched(2)
def svd(a: Any, *, full_matrices: bool, compute_uv: bool) -> Any:
    """Returns (singular values downwards, U, V^H) by one-sided Jacobi; U by QR of the rotated columns, so that it is
    orthogonal for a singular matrix too."""
    if a.shape[0] < a.shape[1]:
        s, u, v = _tall_svd(conj(a).T, full_matrices, compute_uv)
        return (s, v, conj(u).T) if compute_uv else (s,)
    s, u, v = _tall_svd(a, full_matrices, compute_uv)
    return (s, u, conj(v).T) if compute_uv else (s,)


def _tall_svd(a: Any, full: bool, vectors: bool) -> tuple[Any, Any, Any]:
    m, n = a.shape
    if n == 0:
        return jnp.zeros(0, a.real.dtype), jnp.eye(m, m if full else 0, dtype=a.dtype), jnp.zeros((0, 0), a.dtype)
    largest = jnp.max(largest_part(a))
    scale = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    a = a / scale

    each = loops(is_short(a))

    def rotate(p: Any, q: Any, state: Any) -> Any:
        if not is_short(a):
            return _rotated(each, p, q, *state)
        first, second = _rotated_pair(*(m.numbers[:, [p, q]].tolist() for m in state))
        return with_pair(state[0], first, p, q), with_pair(state[1], second, p, q)

    def sweep(_: Any, state: Any) -> Any:
        a, v = _pairs(each, n, rotate, (as_entries(state[0]), as_entries(state[1])))
        return whole(a), whole(v)

    as_entries = apart if is_short(a) else lambda x: x
    state = (a, jnp.eye(n, dtype=a.dtype))
    if n > 1:
        state = lax.fori_loop(0, _sweeps(n, a.dtype), sweep, state)
    a, v = state
    # Squares of small columns underflow; norms relative to the largest entry of the column do not.
    tops = jnp.max(largest_part(a), axis=0)
    safe = jnp.where(tops > 0, tops, jnp.ones_like(tops))
    norms = tops * jnp.sqrt(jnp.sum(squared(a / safe), axis=0))
    if not vectors:
        (falling,) = lax.sort((-norms,), num_keys=1)
        return -falling * scale, a, v
    falling, a, v = _sorted_columns(-norms, a, v)
    packed, taus, _ = triangle(a, n)
    signs = jnp.where(jnp.diag(whole(packed)).real < 0, -1, 1).astype(norms.dtype)
    u = product(packed, taus, m if full else n)
    if full and m > n:
        signs = jnp.concatenate([signs, jnp.ones(m - n, signs.dtype)])
    return -falling * scale, u * signs, v
