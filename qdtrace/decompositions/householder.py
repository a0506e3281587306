"""Factorisations by Householder reflections, in LAPACK's packed form and out of it: QR, Hessenberg, tridiagonal.

Reflections are kept below the diagonal, without their leading one, and their factors apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from qdtrace.decompositions.linalg import conj, largest_part, outer, squared, steps, swap
from qdtrace.trace.importer.registry import batched, decomposition

if TYPE_CHECKING:
    from collections.abc import Callable


def reflector(column: Any, k: Any) -> tuple[Any, Any, Any]:
    """Returns (v, tau, beta) of the reflection 1 - tau v v^H whose adjoint turns a column into (kept, beta, 0, ...).

    v is one at k and zero above, beta is real; signs are those of LAPACK.
    """
    rows = jnp.arange(column.shape[0])
    column = jnp.where(rows >= k, column, jnp.zeros_like(column))
    tail = jnp.where(rows > k, column, jnp.zeros_like(column))
    largest = jnp.max(largest_part(column))
    scale = jnp.where(largest > 0, largest, jnp.ones_like(largest))
    alpha, tail = column[k] / scale, tail / scale
    rest = jnp.sum(squared(tail))
    norm = jnp.sqrt(squared(alpha) + rest)
    flat = jnp.all(tail == 0)  # one whose squares vanish still turns the sign, as in LAPACK
    if jnp.iscomplexobj(alpha):
        flat = flat & (alpha.imag == 0)
    beta = jnp.where(flat, alpha.real, -jnp.copysign(norm, alpha.real))
    head = jnp.where(flat, jnp.ones_like(alpha), alpha - beta)
    v = jnp.where(rows == k, jnp.ones_like(column), tail / head)
    v = jnp.where(rows >= k, v, jnp.zeros_like(v))
    tau = jnp.where(flat, jnp.zeros_like(alpha), (beta - alpha) / jnp.where(flat, jnp.ones_like(beta), beta))
    return v, tau, beta * scale


def reflected(v: Any, tau: Any, a: Any) -> Any:
    """Returns (1 - tau v v^H) a; the adjoint for a conjugate tau."""
    return a - outer(tau * v, conj(v) @ a)


def reflected_from_right(v: Any, tau: Any, a: Any) -> Any:
    """Returns a (1 - tau v v^H)."""
    return a - outer(a @ v, tau * conj(v))


def _reduced(a: Any, at: Any, k: Any) -> tuple[Any, Any, Any]:
    """Returns (a, v, tau): reduces column k below row `at`, where its reflection stays; reflects later columns."""
    rows, columns = map(jnp.arange, a.shape)
    v, tau, beta = reflector(a[:, k], at)
    column = jnp.where(rows > at, v, jnp.where(rows == at, beta.astype(a.dtype), a[:, k]))
    # columns up to k hold the reflections of earlier steps
    behind = jnp.where(columns > k, conj(v) @ a, jnp.zeros_like(a[0]))
    return (a - outer(conj(tau) * v, behind)).at[:, k].set(column), v, tau


def triangle(a: Any, count: int, kept: Any = None) -> tuple[Any, Any, Any]:
    """Returns (reflections below R, factors, order of columns) of the first columns.

    They are pivoted unless `kept`, the number of leading columns that stay in their place, is None.
    """
    n = a.shape[1]

    def step(k: Any, state: Any) -> Any:
        a, taus, order = state
        if kept is not None:
            p = jnp.where(k < kept, k, _longest_column(a, k)).astype(jnp.int32)
            a, order = swap(a.T, k, p).T, swap(order, k, p)
        a, _, tau = _reduced(a, k, k)
        return a, taus.at[k].set(tau), order

    return steps(count, step, (a, jnp.zeros(count, a.dtype), jnp.arange(n, dtype=jnp.int32)))


def _longest_column(a: Any, k: Any) -> Any:
    """Returns the column from k on that is longest below row k."""
    m, n = a.shape
    below = jnp.where((jnp.arange(m) >= k)[:, None], a, jnp.zeros_like(a))
    largest = jnp.max(largest_part(below))
    below = below / jnp.where(largest > 0, largest, jnp.ones_like(largest))
    lengths = jnp.where(jnp.arange(n) >= k, jnp.sum(squared(below), 0), -1)
    return jnp.argmax(lengths).astype(jnp.int32)


def _vector(a: Any, k: Any, at: Any) -> Any:
    """Returns the reflection stored in column k below row `at`."""
    rows = jnp.arange(a.shape[0])
    return jnp.where(rows > at, a[:, k], jnp.where(rows == at, jnp.ones_like(a[:, k]), jnp.zeros_like(a[:, k])))


def product(a: Any, taus: Any, columns: int) -> Any:
    """Returns the first columns of the product of reflections."""
    count = taus.shape[0]

    def step(j: Any, q: Any) -> Any:
        k = count - 1 - j
        return reflected(_vector(a, k, k), taus[k], q)

    return steps(count, step, jnp.eye(a.shape[0], columns, dtype=a.dtype))


@decomposition("householder_product")
@batched(2)
def householder_product(a: Any, taus: Any) -> Any:
    """Returns the first columns of the product of reflections, as many as the matrix has."""
    return product(a, taus, a.shape[1])


@decomposition("geqrf")
@batched(2)
def geqrf(a: Any) -> Any:
    """Returns (reflections below R, factors)."""
    return triangle(a, min(a.shape))[:2]


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
    result = product(packed, taus, kept), jnp.triu(packed[:kept])
    return (*result, order) if pivoting else result


@decomposition("ormqr")
@batched(2)
def ormqr(a: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> Any:
    """Returns a matrix times the product of reflections, or its adjoint, from one side."""
    count = taus.shape[0]

    def step(j: Any, c: Any) -> Any:
        k = j if left == transpose else count - 1 - j
        tau = conj(taus[k]) if transpose else taus[k]
        return (reflected if left else reflected_from_right)(_vector(a, k, k), tau, c)

    return steps(count, step, c)


def _similar(a: Any) -> tuple[Any, Any]:
    """Makes zeros below the first subdiagonal by reflections from both sides; returns (packed, factors)."""
    count = max(a.shape[0] - 1, 0)

    def step(k: Any, state: Any) -> Any:
        a, taus = state
        a, v, tau = _reduced(a, k + 1, k)
        # the reflection has no part in the columns up to k
        return reflected_from_right(v, tau, a), taus.at[k].set(tau)

    return steps(count, step, (a, jnp.zeros(count, a.dtype)))


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
