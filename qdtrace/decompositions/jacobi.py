"""Eigenvalues of Hermitian matrices and singular values by Jacobi rotations.

Rotations are cyclic; those for singular values act from one side (Hestenes). The number of sweeps is fixed, so that all
lanes take the same path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from qdtrace.decompositions.householder import product, triangle
from qdtrace.decompositions.linalg import UNROLLED, conj, largest_part, squared
from qdtrace.trace.importer.registry import batched, decomposition

if TYPE_CHECKING:
    from collections.abc import Callable

_ALGORITHM = "it chooses among ways to the same result"


def _sweeps(n: int, dtype: Any) -> int:
    """Returns the number of sweeps for the last bit at these sizes; cyclic Jacobi converges quadratically."""
    single = 5 if n <= 3 else 7 if n <= 6 else 10
    return single + (3 if jnp.finfo(dtype).bits == 64 else 0)


def _rotation(difference: Any, twice: Any) -> tuple[Any, Any]:
    """Returns (cosine, sine) of the rotation that zeroes an off-diagonal entry: cot(2 angle) = difference / twice."""
    zero = twice == 0
    theta = difference / jnp.where(zero, jnp.ones_like(twice), twice)
    t = jnp.where(theta >= 0, 1, -1).astype(theta.dtype) / (jnp.abs(theta) + jnp.hypot(theta, jnp.ones_like(theta)))
    t = jnp.where(zero, jnp.zeros_like(t), t)
    c = lax.rsqrt(t * t + 1)
    return c, t * c


def _phase(x: Any) -> tuple[Any, Any]:
    """Returns (size, conjugate direction) of a number; a real one is left as it is, in direction None."""
    if not jnp.iscomplexobj(x):
        return x, None
    size = jnp.abs(x)
    zero = size == 0
    direction = conj(x) / jnp.where(zero, jnp.ones_like(size), size)
    return size, jnp.where(zero, jnp.ones_like(x), direction)


def _turn(a: Any, p: Any, q: Any, c: Any, s: Any, direction: Any) -> Any:
    """Rotates columns p and q of `a`, column q multiplied by a direction before."""
    x, y = a[:, p], a[:, q]
    y = y if direction is None else y * direction
    return a.at[:, p].set(c * x - s * y).at[:, q].set(s * x + c * y)


def _sweep(n: int, rotate: Callable[[Any, Any, Any], Any], state: Any) -> Any:
    """Runs `rotate(p, q, state)` for every pair of columns."""
    pairs = np.stack(np.triu_indices(n, 1), 1).astype(np.int32)
    if n <= UNROLLED:
        for p, q in pairs.tolist():
            state = rotate(p, q, state)
        return state
    table = jnp.asarray(pairs)
    return lax.fori_loop(0, len(pairs), lambda k, s: rotate(table[k, 0], table[k, 1], s), state)


def _sorted_columns(key: Any, *matrices: Any) -> list[Any]:
    """Sorts keys upwards, columns of the matrices with them."""
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
    """Returns (eigenvectors, eigenvalues upwards) of a Hermitian matrix by cyclic Jacobi rotations."""
    n = a.shape[0]
    half = jnp.tril(a, -1) if lower else conj(jnp.triu(a, 1)).T
    a = half + conj(half).T + jnp.diag(jnp.diag(a).real.astype(a.dtype))
    if n <= 1:
        return jnp.ones_like(a), jnp.diag(a).real

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

    def rotate(p: Any, q: Any, state: Any) -> Any:
        a, v = state
        x, y = a[:, p], a[:, q]
        size, direction = _phase(jnp.vdot(x, y))
        c, s = _rotation(jnp.sum(squared(y)) - jnp.sum(squared(x)), 2 * size)
        return _turn(a, p, q, c, s, direction), _turn(v, p, q, c, s, direction)

    state = (a, jnp.eye(n, dtype=a.dtype))
    if n > 1:
        state = lax.fori_loop(0, _sweeps(n, a.dtype), lambda _, s: _sweep(n, rotate, s), state)
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
    signs = jnp.where(jnp.diag(packed).real < 0, -1, 1).astype(norms.dtype)
    u = product(packed, taus, m if full else n)
    if full and m > n:
        signs = jnp.concatenate([signs, jnp.ones(m - n, signs.dtype)])
    return -falling * scale, u * signs, v
