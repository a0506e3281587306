"""Factorisations in LAPACK's packed forms, their use, and tridiagonal systems.

Reflections are kept below the diagonal, without their leading one, and their factors apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
from jax import lax

from qdtrace.trace.importer.linalg import (
    batched,
    conj,
    largest_column,
    reflected,
    reflected_from_right,
    reflector,
    steps,
    swap,
)
from qdtrace.trace.importer.registry import decomposition

if TYPE_CHECKING:
    from collections.abc import Callable


def _packed(a: Any, at: Any, k: Any) -> tuple[Any, Any]:
    """Column k reduced below row `at`, its reflection stored there; the other columns are left to the caller."""
    rows = jnp.arange(a.shape[0])
    v, tau, beta = reflector(a[:, k], at)
    column = jnp.where(rows > at, v, jnp.where(rows == at, beta.astype(a.dtype), a[:, k]))
    return a.at[:, k].set(column), (v, tau)


@decomposition("geqrf")
@batched(2)
def geqrf(a: Any) -> Any:
    """(reflections below R, factors)."""
    return _householder(a, None)[:2]


@decomposition("geqp3", ignores={"use_magma": "it chooses a library for GPUs"})
@batched(2)
def geqp3(a: Any, fixed: Any) -> Any:
    """(reflections below R, one-based order of columns, factors), the longest column next."""
    n = a.shape[1]
    # columns that are marked come first, as they are
    first = jnp.argsort(jnp.where(fixed != 0, 0, 1), stable=True).astype(jnp.int32)
    packed, taus, order = _householder(a[:, first], jnp.sum(fixed != 0))
    return packed, (first[order] + 1).astype(fixed.dtype).reshape(n), taus


def _householder(a: Any, kept: Any) -> tuple[Any, Any, Any]:
    """Reflections column by column; with pivoting unless `kept`, the number of leading columns without, is None."""
    m, n = a.shape
    columns = jnp.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, taus, order = state
        if kept is not None:
            p = jnp.where(k < kept, k, largest_column(a, k)).astype(jnp.int32)
            a, order = swap(a.T, k, p).T, swap(order, k, p)
        packed, (v, tau) = _packed(a, k, k)
        return jnp.where(columns > k, reflected(v, conj(tau), a), packed), taus.at[k].set(tau), order

    count = min(m, n)
    return steps(count, step, (a, jnp.zeros(count, a.dtype), jnp.arange(n, dtype=jnp.int32)))


def _vector(a: Any, k: Any, at: Any) -> Any:
    """The reflection stored in column k below row `at`."""
    rows = jnp.arange(a.shape[0])
    return jnp.where(rows > at, a[:, k], jnp.where(rows == at, jnp.ones_like(a[:, k]), jnp.zeros_like(a[:, k])))


@decomposition("householder_product")
@batched(2)
def householder_product(a: Any, taus: Any) -> Any:
    """The first columns of the product of reflections."""
    count = taus.shape[0]

    def step(j: Any, q: Any) -> Any:
        k = count - 1 - j
        return reflected(_vector(a, k, k), taus[k], q)

    return steps(count, step, jnp.eye(*a.shape, dtype=a.dtype))


@decomposition("ormqr")
@batched(2)
def ormqr(a: Any, taus: Any, c: Any, *, left: bool, transpose: bool) -> Any:
    """A matrix times the product of reflections, or its adjoint, from one side."""
    count = taus.shape[0]

    def step(j: Any, c: Any) -> Any:
        k = j if left == transpose else count - 1 - j
        tau = conj(taus[k]) if transpose else taus[k]
        return (reflected if left else reflected_from_right)(_vector(a, k, k), tau, c)

    return steps(count, step, c)


def _similar(a: Any) -> tuple[Any, Any]:
    """Zeros below the first subdiagonal by reflections from both sides: (packed, factors)."""
    n = a.shape[0]
    columns = jnp.arange(n)

    def step(k: Any, state: Any) -> Any:
        a, taus = state
        packed, (v, tau) = _packed(a, k + 1, k)
        a = reflected_from_right(v, tau, jnp.where(columns > k, reflected(v, conj(tau), a), packed))
        # the reflection has no part in the columns up to k
        return jnp.where(columns > k, a, packed), taus.at[k].set(tau)

    return steps(n - 1, step, (a, jnp.zeros(n - 1, a.dtype)))


@decomposition("hessenberg")
@batched(2)
def hessenberg(a: Any) -> Any:
    """(reflections below the first subdiagonal of a Hessenberg matrix, factors)."""
    return _similar(a)


@decomposition("tridiagonal")
@batched(2)
def tridiagonal(a: Any, *, lower: bool) -> Any:
    """(packed, diagonal, off-diagonal, factors) of a Hermitian matrix; the upper form goes from the last column on."""
    turn: Callable[[Any], Any] = (lambda x: x) if lower else (lambda x: x[(slice(None, None, -1),) * x.ndim])
    given, a = a, turn(a)
    below = jnp.tril(a, -1)
    packed, taus = _similar(below + conj(below).T + jnp.diag(jnp.diag(a).real.astype(a.dtype)))
    d, e = jnp.diag(packed).real, jnp.diag(packed, -1).real
    stored = turn(jnp.tril(packed))
    other = jnp.triu(given, 1) if lower else jnp.tril(given, -1)
    return stored + other, turn(d), turn(e), turn(taus)


@decomposition("tridiagonal_solve", assumes={"perturb_singular": False})
@batched(1)
def tridiagonal_solve(dl: Any, d: Any, du: Any, b: Any) -> Any:
    """Elimination with exchanges of neighbouring rows; NaN for a singular matrix."""
    n = d.shape[0]

    def size(x: Any) -> Any:
        return jnp.abs(x.real) + jnp.abs(x.imag) if jnp.iscomplexobj(x) else jnp.abs(x)

    def step(k: Any, state: Any) -> Any:
        first, second, third, rhs = state
        exchange = size(dl[k + 1]) > size(first[k])
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
    """The upper factor of r^T r + w w^T by rotations of rows."""

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
    """alpha a a^T + beta c."""
    return alpha * lax.dot_general(a, a, (((1,), (1,)), ((), ()))) + beta * c
