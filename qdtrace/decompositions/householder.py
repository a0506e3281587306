"""Factorisations by Householder reflections, in LAPACK's packed form and out of it: QR, Hessenberg, tridiagonal.

Reflections are kept below the diagonal, without their leading one, and their factors apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.decompositions.entries import apart, at, filled, is_short, loops, put, whole, with_columns
from qdtrace.decompositions.linalg import conj, largest_part, squared, swap
from qdtrace.decompositions.reflections import of_column, reduced, reflect_columns, reflect_rows
from qdtrace.trace.importer.registry import batched, decomposition

if TYPE_CHECKING:
    from collections.abc import Callable


def triangle(a: Any, count: int, kept: Any = None) -> tuple[Any, Any, Any]:
    """Returns (reflections below R, factors, order of columns) of the first columns, maybe as entries.

    They are pivoted unless `kept`, the number of leading columns that stay in their place, is None.
    """
    each, order = loops(is_short(a)), jnp.arange(a.shape[1], dtype=jnp.int32)
    # columns are exchanged with one whose number is traced, which entries do not have
    a, taus = _with_factors(a, count, is_short(a) and kept is None)

    def step(k: Any, state: Any) -> Any:
        a, taus, order = state
        if kept is not None:
            p = jnp.where(k < kept, k, _longest_column(a, k))
            a = with_columns(each, a, (0, a.shape[0]), k, p, lambda x, y: (y, x))
            order = swap(order, k, p)
        a, tau = reduced(each, a, k, k)
        return reflect_columns(each, a, k + 1, k, conj(tau), of_column(k)), put(taus, tau, k), order

    return each(0, count, step, (a, taus, order))


def _with_factors(a: Any, count: int, as_entries: bool) -> tuple[Any, Any]:
    """Returns a matrix and so many zeros, both as entries or both as arrays."""
    return (apart(a), filled((count,), a.dtype)) if as_entries else (a, jnp.zeros(count, a.dtype))


def _longest_column(a: Any, k: Any) -> Any:
    """Returns the column from k on that is longest below row k."""
    m, n = a.shape
    below = jnp.where((jnp.arange(m) >= k)[:, None], a, jnp.zeros_like(a))
    largest = jnp.max(largest_part(below))
    below = below / jnp.where(largest > 0, largest, jnp.ones_like(largest))
    lengths = jnp.where(jnp.arange(n) >= k, jnp.sum(squared(below), 0), -1)
    return jnp.argmax(lengths)


def product(a: Any, taus: Any, columns: int) -> Any:
    """Returns the first columns of the product of reflections, which may be entries."""
    count, each, shape = taus.shape[0], loops(is_short(a)), (a.shape[0], columns)
    if is_short(a):
        a, taus, start = apart(a), apart(taus), filled(shape, a.dtype, diagonal=True)
    else:
        start = jnp.eye(*shape, dtype=a.dtype)

    def step(j: Any, q: Any) -> Any:
        k = count - 1 - j
        # columns before k are those of the identity still, and zero from row k on
        return reflect_columns(each, q, k, k, at(taus, k), of_column(k, a))

    return whole(each(0, count, step, start))


@decomposition("householder_product")
@batched(2)
def householder_product(a: Any, taus: Any) -> Any:
    """Returns the first columns of the product of reflections, as many as the matrix has."""
    return product(a, taus, a.shape[1])


@decomposition("geqrf")
@batched(2)
def geqrf(a: Any) -> Any:
    """Returns (reflections below R, factors)."""
    packed, taus, _ = triangle(a, min(a.shape))
    return whole(packed), whole(taus)


@decomposition("geqp3", ignores={"use_magma": "it chooses a library for GPUs"})
@batched(2)
def geqp3(a: Any, fixed: Any) -> Any:
    """Returns (reflections below R, one-based order of columns, factors), the longest column next."""
    n = a.shape[1]
    # columns that are marked come first, as they are
    first = jnp.argsort(jnp.where(fixed != 0, 0, 1), stable=True).astype(jnp.int32)
    packed, taus, order = triangle(a[:, first], min(a.shape), jnp.sum(fixed != 0))
    return packed, (first[order] + 1).astype(fixed.dtype).reshape(n), taus


@decomposition("qr", ignores={"use_magma": "it chooses a library for GPUs"})
@batched(2)
def qr(a: Any, *, full_matrices: bool, pivoting: bool = False) -> Any:
    """Returns (Q, R), signs as in LAPACK; with pivoting also the order of columns."""
    m, n = a.shape
    # the last row of a complex matrix is turned until its diagonal entry is real
    count = min(m if jnp.iscomplexobj(a) or pivoting else max(m - 1, 0), n)
    packed, taus, order = triangle(a, count, 0 if pivoting else None)
    kept = m if full_matrices else min(m, n)
    result = product(packed, taus, kept), jnp.triu(whole(packed)[:kept])
    return (*result, order) if pivoting else result


@decomposition("ormqr")
@batched(2)
def ormqr(a: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> Any:
    """Returns a matrix times the product of reflections, or its adjoint, from one side."""
    count, are_short = taus.shape[0], is_short(a) and is_short(c)
    each = loops(are_short)
    if are_short:
        a, taus, c = apart(a), apart(taus), apart(c)

    def step(j: Any, c: Any) -> Any:
        k = j if left == transpose else count - 1 - j
        tau, v = at(taus, k), of_column(k, a)
        tau = conj(tau) if transpose else tau
        return reflect_columns(each, c, 0, k, tau, v) if left else reflect_rows(each, c, k, tau, v)

    return whole(each(0, count, step, c))


def _similar(a: Any) -> tuple[Any, Any]:
    """Makes zeros below the first subdiagonal by reflections from both sides; returns (packed, factors)."""
    count, each = max(a.shape[0] - 1, 0), loops(is_short(a))

    def step(k: Any, state: Any) -> Any:
        a, taus = state
        a, tau = reduced(each, a, k + 1, k)
        # the reflection has no part in the columns up to k
        a = reflect_columns(each, a, k + 1, k + 1, conj(tau), of_column(k))
        return reflect_rows(each, a, k + 1, tau, of_column(k)), put(taus, tau, k)

    packed, taus = each(0, count, step, _with_factors(a, count, is_short(a)))
    return whole(packed), whole(taus)


@decomposition("hessenberg")
@batched(2)
def hessenberg(a: Any) -> Any:
    """Returns (reflections below the first subdiagonal of a Hessenberg matrix, factors)."""
    return _similar(a)


@decomposition("tridiagonal")
@batched(2)
def tridiagonal(a: Any, *, lower: bool) -> Any:
    """Returns (packed, diagonal, off-diagonal, factors) of a Hermitian matrix; the upper form begins at the end."""
    turn: Callable[[Any], Any] = (lambda x: x) if lower else (lambda x: x[(slice(None, None, -1),) * x.ndim])
    given, a = a, turn(a)
    below = jnp.tril(a, -1)
    packed, taus = _similar(below + conj(below).T + jnp.diag(jnp.diag(a).real.astype(a.dtype)))
    d, e = jnp.diag(packed).real, jnp.diag(packed, -1).real
    stored = turn(jnp.tril(packed))
    other = jnp.triu(given, 1) if lower else jnp.tril(given, -1)
    return stored + other, turn(d), turn(e), turn(taus)
