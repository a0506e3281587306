"""Projects a symmetric matrix of an iteration to the nearest one without negative eigenvalues."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

MOST_SWEEPS = 15
"""Sweeps of rotations after which entries off the diagonal are taken for rounding: some six are usual."""


@jax.custom_jvp
def projected(matrix: Any) -> Any:
    """Returns the nearest symmetric matrix without negative eigenvalues; NaN where one entry is no finite number.

    Eigenvalues are found by cyclic Jacobi rotations of the upper half. What the negative ones contribute is taken from
    the matrix, so that one without any stays as it is.
    """
    n, dtype = matrix.shape[0], matrix.dtype
    whole = matrix + (matrix.T - matrix) / 2
    whole = jnp.triu(whole) + jnp.triu(whole, 1).T
    scale = jnp.max(jnp.abs(whole))
    is_finite = jnp.isfinite(scale)
    least = scale * jnp.finfo(dtype).eps

    def sweep(state: Any) -> Any:
        sweeps, _, upper, vectors = state
        state = jnp.zeros((), dtype), upper, vectors
        state = lax.fori_loop(
            0, n - 1, lambda p, s: lax.fori_loop(p + 1, n, lambda q, s: _rotated(p, q, *s), s), state
        )
        return sweeps + 1, *state

    def goes_on(state: Any) -> Any:
        return (state[1] > least) & (state[0] < MOST_SWEEPS)

    off = jnp.where(is_finite & (n > 1), scale, 0)
    _, _, upper, vectors = lax.while_loop(goes_on, sweep, (jnp.int32(0), off, whole, jnp.eye(n, dtype=dtype)))

    def without(k: Any, left: Any) -> Any:
        negative = jnp.minimum(_at(upper, k, k), 0)

        def row(p: Any, left: Any) -> Any:
            part = negative * _at(vectors, k, p)
            return lax.fori_loop(p, n, lambda q, m: _put(m, (p, q), _at(m, p, q) - part * _at(vectors, k, q)), left)

        return lax.fori_loop(0, n, row, left)

    left = lax.fori_loop(0, n, without, whole)

    def mirrored(p: Any, m: Any) -> Any:
        return lax.fori_loop(p, n, lambda q, m: _put(m, (q, p), _at(m, p, q)), m)

    left = lax.fori_loop(0, n, mirrored, left)
    return jnp.where(is_finite, left, jnp.nan)


@projected.defjvp
def _tangent(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return jax.jvp(_by_eigenvectors, primals, tangents)


def _by_eigenvectors(matrix: Any) -> Any:
    """Returns the same by equations that have derivatives: rotations have none where their angle is any."""
    found, vectors = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * jnp.maximum(found, 0)) @ vectors.T


def _rotated(p: Any, q: Any, off: Any, a: Any, vectors: Any) -> tuple[Any, Any, Any]:
    """Makes entry (p, q) of the upper half zero; `off` is the largest one that was met."""
    n, one = a.shape[0], a.dtype.type(1)
    x, y, between = _at(a, p, p), _at(a, q, q), _at(a, p, q)
    is_zero = between == 0
    theta = (y - x) / jnp.where(is_zero, one, 2 * between)
    t = jnp.where(is_zero, 0, jnp.where(theta >= 0, one, -one) / (jnp.abs(theta) + jnp.sqrt(theta * theta + 1)))
    c = lax.rsqrt(t * t + 1)
    s = t * c

    def turned(m: Any, first: tuple[Any, Any], second: tuple[Any, Any]) -> Any:
        u, v = _at(m, *first), _at(m, *second)
        return _put(_put(m, first, c * u - s * v), second, s * u + c * v)

    a = lax.fori_loop(0, p, lambda k, m: turned(m, (k, p), (k, q)), a)
    a = lax.fori_loop(p + 1, q, lambda k, m: turned(m, (p, k), (k, q)), a)
    a = lax.fori_loop(q + 1, n, lambda k, m: turned(m, (p, k), (q, k)), a)
    a = _put(_put(_put(a, (p, p), x - t * between), (q, q), y + t * between), (p, q), 0)
    vectors = lax.fori_loop(0, n, lambda k, m: turned(m, (p, k), (q, k)), vectors)
    return jnp.maximum(off, jnp.abs(between)), a, vectors


def _at(m: Any, row: Any, column: Any) -> Any:
    return m.at[row, column].get(mode="promise_in_bounds")


def _put(m: Any, at: tuple[Any, Any], value: Any) -> Any:
    return m.at[at].set(value, mode="promise_in_bounds")
