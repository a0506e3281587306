"""Small dense linear algebra as jnp functions: up to 6x6 the steps are written out, above that they are loops.

Here are systems of equations: LU with partial pivoting, Cholesky, substitution, tridiagonal systems.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.decompositions.entries import UNROLLED, at, put, steps
from qdtrace.trace import jax_settings
from qdtrace.trace.importer.registry import batched, decomposition

if TYPE_CHECKING:
    from collections.abc import Sequence

TILE = 4
"""Sums that one loop of a longer decomposition makes, which share what it loads."""


def written_out(a: Any) -> Any:
    """Returns a small matrix as scalars, which one that loops have made is not: no step on it is a loop then."""
    if not 0 < a.size <= UNROLLED * UNROLLED:
        return a
    return lax.concatenate(lax.split(a.reshape(a.size), [1] * a.size), 0).reshape(a.shape)


def outer(u: Any, v: Any) -> Any:
    """Returns u v^T as a contraction, in which constant zeros cost nothing (see `contraction`)."""
    return lax.dot_general(u[:, None], v[None, :], (((1,), (0,)), ((), ())))


def pivot_size(x: Any) -> Any:
    """Returns the size that LAPACK compares to find a pivot: |re| + |im|, which is cheaper than the modulus."""
    return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)


def conj(x: Any) -> Any:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


@decomposition("lu")
@batched(2)
def lu(a: Any) -> Any:
    """Returns (factors, pivots, permutation) with partial pivoting; leaves a column of zeros as it is, like LAPACK."""
    m, n = a.shape
    count = min(m, n)
    rows = jnp.arange(m, dtype=jnp.int32)
    if count > UNROLLED:
        return _lu_in_place(a)
    a = written_out(a)

    def step(k: int, state: Any) -> Any:
        a, pivots, permutation = state
        p = (jnp.argmax(pivot_size(a[k:, k])) + k).astype(jnp.int32)
        a, permutation = swap(a, k, p), swap(permutation, k, p)
        below = rows > k
        pivot = jnp.where(a[k, k] == 0, jnp.ones_like(a[k, k]), a[k, k])
        factor = jnp.where(below, a[:, k] / pivot, jnp.zeros_like(a[:, k]))
        right = jnp.where(jnp.arange(n) > k, a[k], jnp.zeros_like(a[k]))
        a = a - outer(factor, right)
        return a.at[:, k].set(jnp.where(below, factor, a[:, k])), pivots.at[k].set(p), permutation

    return steps(count, step, (a, jnp.zeros(count, jnp.int32), rows))


def _lu_in_place(a: Any) -> Any:
    """Returns what `lu` does, by loops over the rows and columns that a step changes."""
    m, n = a.shape

    def step(k: Any, state: Any) -> Any:
        a, pivots, permutation = state

        def larger(i: Any, found: Any) -> Any:
            size = pivot_size(at(a, i, k))
            better = (size > found[0]) | ((size != size) & (found[0] == found[0]))  # the first NaN, as in argmax
            return jnp.where(better, size, found[0]), jnp.where(better, i, found[1])

        p = lax.fori_loop(k + 1, m, larger, (pivot_size(at(a, k, k)), k))[1]

        def exchange(j: Any, a: Any) -> Any:
            upper, lower = at(a, k, j), at(a, p, j)
            return put(put(a, lower, k, j), upper, p, j)

        a, permutation = lax.fori_loop(0, n, exchange, a), swap(permutation, k, p)
        found = at(a, k, k)
        pivot = jnp.where(found == 0, jnp.ones_like(found), found)

        def eliminate(i: Any, a: Any) -> Any:
            factor = at(a, i, k) / pivot
            subtract = lambda j, a: put(a, at(a, i, j) - factor * at(a, k, j), i, j)  # noqa: E731
            return lax.fori_loop(k + 1, n, subtract, put(a, factor, i, k))

        return lax.fori_loop(k + 1, m, eliminate, a), put(pivots, p.astype(jnp.int32), k), permutation

    count = min(m, n)
    return lax.fori_loop(0, count, step, (a, jnp.zeros(count, jnp.int32), jnp.arange(m, dtype=jnp.int32)))


def swap(a: Any, k: Any, p: Any, *, any_order: bool = False) -> Any:
    """Exchanges rows k and p; p is not less than k unless they are in any order."""
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
    """Returns row exchanges, one after the other, as a permutation."""
    exchange = lambda k, rows: swap(rows, k, pivots[k], any_order=True)  # noqa: E731
    return steps(pivots.shape[0], exchange, jnp.arange(permutation_size, dtype=pivots.dtype))


@decomposition("cholesky")
@batched(2)
def cholesky(a: Any) -> Any:
    """Returns the lower factor, by columns; NaN everywhere when a pivot is zero or negative, as in JAX."""
    n = a.shape[0]

    def step(k: Any, state: Any) -> Any:
        lower, definite = state
        lower, square = _whole_column(a, lower, k)
        return lower, definite & ~(square <= 0)

    def two(p: Any, state: Any) -> Any:
        lower, definite = state
        lower, first, second = _tiled_columns(a, lower, 2 * p)
        return lower, definite & ~(first <= 0) & ~(second <= 0)

    state = (jnp.zeros_like(a), jnp.asarray(True))
    if n <= UNROLLED:
        lower, definite = steps(n, step, state)
    else:
        lower, definite = lax.fori_loop(0, n // 2, two, state)
        if n % 2:
            lower, square = _last_pivot(a, lower)
            definite &= ~(square <= 0)
    nothing = complex(np.nan, np.nan) if jnp.iscomplexobj(a) else np.nan
    return jnp.where(definite, lower, jnp.full_like(a, nothing))


def _whole_column(a: Any, lower: Any, k: int) -> tuple[Any, Any]:
    """Returns the factor with its column k, and the pivot."""
    rows = jnp.arange(a.shape[0])
    column = a[:, k] - lower @ conj(lower[k])
    square = column[k].real
    root = jnp.sqrt(square)
    scaled = jnp.where(rows > k, column / root, jnp.zeros_like(column))
    return lower.at[:, k].set(jnp.where(rows == k, root.astype(a.dtype), scaled)), square


def _tiled_columns(a: Any, lower: Any, k: Any) -> tuple[Any, Any, Any]:
    """Returns the factor with its columns k and k + 1, and their pivots, by loops over the elements of some rows.

    Each number that a loop loads is in a sum of both columns, or of all rows.
    """
    n, m = a.shape[0], k + 1

    def corner(j: Any, sums: Any) -> Any:
        x, y = at(lower, k, j), at(lower, m, j)
        return sums[0] - squared(x), sums[1] - y * conj(x), sums[2] - squared(y)

    first, below, second = lax.fori_loop(0, k, corner, (at(a, k, k).real, at(a, m, k), at(a, m, m).real))
    root = jnp.sqrt(first)
    below = below / root
    second = second - squared(below)
    next_root = jnp.sqrt(second)

    def tile(b: Any, lower: Any) -> Any:
        rows = tile_rows(b, n)
        start = tuple(at(a, i, c) for c in (k, m) for i in rows)

        def less(j: Any, sums: Any) -> Any:
            factors, upper, under = [at(lower, i, j) for i in rows], conj(at(lower, k, j)), conj(at(lower, m, j))
            return *_minus(sums[:TILE], factors, upper), *_minus(sums[TILE:], factors, under)

        sums = lax.fori_loop(0, k, less, start)
        for x, y, i in zip(sums[:TILE], sums[TILE:], rows, strict=True):
            x = x / root
            y = (y - x * conj(below)) / next_root
            lower = put(lower, jnp.where(i > m, x, at(lower, i, k)), i, k)
            lower = put(lower, jnp.where(i > m, y, at(lower, i, m)), i, m)
        return lower

    lower = put(put(put(lower, root.astype(a.dtype), k, k), below, m, k), next_root.astype(a.dtype), m, m)
    return lax.fori_loop(0, (n - m - 2 + TILE) // TILE, tile, lower), first, second


def _last_pivot(a: Any, lower: Any) -> tuple[Any, Any]:
    """Returns the factor with its last column, which is one number, and its pivot."""
    k = a.shape[0] - 1
    square = lax.fori_loop(0, k, lambda j, x: x - squared(at(lower, k, j)), a[k, k].real)
    return put(lower, jnp.sqrt(square).astype(a.dtype), k, k), square


def _minus(sums: Sequence[Any], factors: Sequence[Any], common: Any) -> tuple[Any, ...]:
    return tuple(s - x * common for s, x in zip(sums, factors, strict=True))


def tile_rows(b: Any, n: int) -> list[Any]:
    """Returns the rows of the tile `b` of `n` rows, the last ones first; the last tile overlaps."""
    first = jnp.maximum(n - TILE * (b + 1), 0)
    return [first + t for t in range(TILE)]


@decomposition("triangular_solve")
@batched(2)
def triangular_solve(
    a: Any, b: Any, *, left_side: bool, lower: bool, transpose_a: bool, conjugate_a: bool, unit_diagonal: bool
) -> Any:
    """Solves by substitution, row by row; small systems right side by right side where these are many."""
    if conjugate_a:
        a = conj(a)
    if transpose_a:
        a, lower = a.T, not lower
    if not left_side:
        a, b, lower = a.T, b.T, not lower
    n = a.shape[0]

    def step(k: int, x: Any, b: Any) -> Any:
        i = k if lower else n - 1 - k
        known = slice(0, i) if lower else slice(i + 1, n)
        row = b[i] - a[i, known] @ x[known] if known.start < known.stop else b[i]
        return x.at[i].set(row if unit_diagonal else row / a[i, i])

    def in_place(k: Any, x: Any) -> Any:
        i = k if lower else n - 1 - k
        start, stop = (0, i) if lower else (i + 1, n)

        def tile(c: Any, x: Any) -> Any:
            columns = tile_rows(c, b.shape[1]) if b.shape[1] >= TILE else range(b.shape[1])
            first = tuple(at(b, i, c) for c in columns)
            less = lambda j, s: _minus(s, [at(x, j, c) for c in columns], at(a, i, j))  # noqa: E731
            sums = lax.fori_loop(start, stop, less, first)
            for y, c in zip(sums, columns, strict=True):
                x = put(x, y if unit_diagonal else y / at(a, i, i), i, c)
            return x

        return lax.fori_loop(0, -(-b.shape[1] // TILE), tile, x)

    def column(c: Any, x: Any) -> Any:
        side = b[:, c]
        return x.at[:, c].set(steps(n, lambda k, y: step(k, y, side), jnp.zeros_like(side)))

    x, machine = jnp.zeros_like(b), jax_settings.default_machine()
    if n > UNROLLED:
        x = lax.fori_loop(0, n, in_place, x)
    elif b.size > machine.scalars_of_matrices:
        x = lax.fori_loop(0, b.shape[1], column, x)
    else:
        x = steps(n, lambda k, x: step(k, x, b), x)
    return x if left_side else x.T


def largest_part(x: Any) -> Any:
    """Returns the larger part of a complex number, the size of a real one."""
    return jnp.maximum(jnp.abs(x.real), jnp.abs(x.imag)) if jnp.iscomplexobj(x) else jnp.abs(x)


def squared(x: Any) -> Any:
    return x.real * x.real + x.imag * x.imag if jnp.iscomplexobj(x) else x * x


@decomposition("tridiagonal_solve", assumes={"perturb_singular": False})
@batched(1)
def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Any:
    """Solves by elimination with exchanges of neighbouring rows; NaN for a singular matrix."""
    n = d.shape[0]

    def step(k: Any, state: Any) -> Any:
        first, second, third, rhs = state
        exchange = pivot_size(dl[k + 1]) > pivot_size(first[k])
        here = (first[k], second[k], jnp.zeros_like(d[0]), rhs[k])
        below = (dl[k + 1], d[k + 1], jnp.where(k + 2 < n, du[k + 1], 0), b[k + 1])
        p = [jnp.where(exchange, y, x) for x, y in zip(here, below, strict=True)]
        o = [jnp.where(exchange, x, y) for x, y in zip(here, below, strict=True)]
        factor = o[0] / p[0]
        first = first.at[k].set(p[0]).at[k + 1].set(o[1] - factor * p[1])
        second = second.at[k].set(p[1]).at[k + 1].set(o[2] - factor * p[2])
        return first, second, third.at[k].set(p[2]), rhs.at[k].set(p[3]).at[k + 1].set(o[3] - factor * p[3])

    start = (d, jnp.where(jnp.arange(n) == n - 1, jnp.zeros_like(du), du), jnp.zeros_like(d), b)
    first, second, third, rhs = steps(n - 1, step, start)

    def back(j: Any, x: Any) -> Any:
        k = n - 1 - j
        one, two = (jnp.minimum(k + o, n - 1) for o in (1, 2))
        row = rhs[k] - second[k] * x[one] - third[k] * x[two]
        return x.at[k].set(row / first[k])

    x = steps(n, back, jnp.zeros_like(b))
    return jnp.where(jnp.all(first != 0), x, jnp.nan)


@decomposition("cholesky_update")
@batched(2)
def cholesky_update(r: Any, w: Any) -> Any:
    """Returns the upper factor of r^T r + w w^T by rotations of rows."""

    def step(k: Any, state: Any) -> Any:
        r, w = state
        x, y = r[k, k], w[k]
        length = jnp.hypot(x, y)
        still = y == 0
        c = jnp.where(still, jnp.ones_like(x), x / jnp.where(still, jnp.ones_like(x), length))
        s = jnp.where(still, jnp.zeros_like(y), y / jnp.where(still, jnp.ones_like(x), length))
        return r.at[k].set(c * r[k] + s * w), c * w - s * r[k]

    return steps(w.shape[0], step, (r, w))[0]


@decomposition("symmetric_product", zeros_vanish=False)
@batched(2)
def symmetric_product(a: Any, c: Any, *, alpha: Any, beta: Any) -> Any:
    """Returns alpha a a^T + beta c."""
    return alpha * lax.dot_general(a, a, (((1,), (1,)), ((), ()))) + beta * c
