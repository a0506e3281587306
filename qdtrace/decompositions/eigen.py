"""Eigenvalues of matrices that are not Hermitian: complex QR iterations with one shift, each lane until it is done.

A Hessenberg form is turned into an upper triangle (Golub and Van Loan, 7.5). Eigenvalues come in the order in which
the triangle has them, which is not LAPACK's.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from qdtrace.decompositions.householder import hessenberg, householder_product
from qdtrace.decompositions.linalg import at, conj, pivot_size, put, with_columns
from qdtrace.errors import UnsupportedError
from qdtrace.trace.importer.registry import batched, decomposition

STEPS = 40
"""Most iterations for each eigenvalue; a lane that needs more gives NaN."""


def _unitary_of(packed: Any, taus: Any) -> Any:
    """Returns the product of the reflections of a Hessenberg form; its first row and column are the identity's."""
    n = packed.shape[0]
    inner = householder_product(packed[1:, : n - 1], taus)
    return jnp.eye(n, dtype=packed.dtype).at[1:, 1:].set(inner)


def _shift(t: Any, k: Any) -> Any:
    """Returns the eigenvalue of the last two rows up to k that is nearer to the corner."""
    a, b, c, d = t[k - 1, k - 1], t[k - 1, k], t[k, k - 1], t[k, k]
    half = 0.5 * (a - d)
    root = jnp.sqrt(half * half + b * c)
    root = jnp.where(half.real * root.real + half.imag * root.imag < 0, -root, root)
    below = half + root
    return d - jnp.where(below == 0, 0, b * c / jnp.where(below == 0, 1, below))


def _rotation(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns (c, s) of a rotation [[c, s], [-conj(s), c]] that takes (x, y) to (r, 0)."""
    a, b = jnp.abs(x), jnp.abs(y)
    r = jnp.hypot(a, b)
    zero, alone = r == 0, a == 0
    safe_r, safe_a = jnp.where(zero, 1, r), jnp.where(alone, 1, a)
    s = jnp.where(alone, 1, x / safe_a * conj(y) / safe_r)
    return jnp.where(zero, 1, a / safe_r), jnp.where(zero, 0, s)


def _turn_rows(t: Any, k: Any, c: Any, s: Any, first: Any) -> Any:
    """Rotates rows k and k + 1, from the column `first` on."""

    def column(j: Any, t: Any) -> Any:
        x, y = at(t, k, j), at(t, k + 1, j)
        return put(put(t, c * x + s * y, k, j), c * y - conj(s) * x, k + 1, j)

    return lax.fori_loop(first, t.shape[1], column, t)


def _turn_columns(t: Any, k: Any, c: Any, s: Any, last: Any) -> Any:
    """Rotates columns k and k + 1, in rows before `last`."""

    rows = jnp.zeros_like(k), last
    return with_columns(lax.fori_loop, t, rows, k, k + 1, lambda x, y: (c * x + conj(s) * y, c * y - s * x))


def _largest(t: Any) -> Any:
    """Returns the modulus of the largest entry."""
    n = t.shape[0]
    row = lambda i, most: lax.fori_loop(0, n, lambda j, most: jnp.maximum(most, jnp.abs(at(t, i, j))), most)  # noqa: E731
    return lax.fori_loop(0, n, row, jnp.zeros((), t.real.dtype))


def triangle_of(a: Any) -> tuple[Any, Any]:
    """Returns complex (T, Z) with a = Z T Z^H, T an upper triangle; NaN if the iterations did not end."""
    n, dtype = a.shape[0], jnp.result_type(a, jnp.complex64)
    if n <= 1:
        return a.astype(dtype), jnp.ones_like(a, dtype)
    packed, taus = hessenberg(a)
    t, z = jnp.triu(packed, -1).astype(dtype), _unitary_of(packed, taus).astype(dtype)
    eps = jnp.finfo(a.dtype).eps
    norm = jnp.sqrt(jnp.sum(a.real * a.real + a.imag * a.imag))

    def is_small(t: Any, k: Any) -> Any:
        near = pivot_size(t[k - 1, k - 1]) + pivot_size(t[k, k])
        return pivot_size(t[k, k - 1]) <= eps * jnp.where(near == 0, norm, near)

    def going(state: Any) -> Any:
        _, _, last, count, _ = state
        return (last > 0) & (count < STEPS * n)

    def step(state: Any) -> Any:
        t, z, last, count, tries = state
        first = lax.while_loop(
            lambda k: jnp.where(k > 0, ~is_small(t, jnp.maximum(k, 1)), False), lambda k: k - 1, last
        )
        done = first == last
        # every tenth try takes a shift that has nothing to do with the matrix
        other = t[last, last] + pivot_size(t[last, jnp.maximum(last - 1, 0)])
        shift = jnp.where(tries % 10 == 9, other, _shift(t, jnp.maximum(last, 1)))

        def chase(k: Any, state: Any) -> Any:
            t, z = state
            behind = jnp.maximum(k - 1, 0)
            x = jnp.where(k == first, t[k, k] - shift, t[k, behind])
            y = jnp.where(k == first, t[k + 1, k], t[k + 1, behind])
            c, s = _rotation(x, y)
            # a Hessenberg form has zeros before the column `behind` in these rows, and below row k + 2 in these columns
            t = _turn_columns(_turn_rows(t, k, c, s, behind), k, c, s, jnp.minimum(k + 3, n))
            zeroed = jnp.where(k == first, at(t, k + 1, behind), 0)
            return put(t, zeroed, k + 1, behind), _turn_columns(z, k, c, s, n)

        t, z = lax.fori_loop(first, jnp.where(done, first, last), chase, (t, z))
        corner = jnp.maximum(last - 1, 0)
        t = t.at[last, corner].set(jnp.where(done, 0, t[last, corner]))
        return t, z, jnp.where(done, last - 1, last), count + 1, jnp.where(done, 0, tries + 1)

    zero = jnp.int32(0)
    t, z, last, _, _ = lax.while_loop(going, step, (t, z, jnp.int32(n - 1), zero, zero))
    failed = last > 0
    return jnp.where(failed, jnp.nan, jnp.triu(t)), jnp.where(failed, jnp.nan, z)


def _vectors(t: Any, z: Any) -> Any:
    """Returns eigenvectors of z t z^H, t an upper triangle, as columns: by substitution from the diagonal up."""
    n = t.shape[0]
    rows, zero = jnp.arange(n), jnp.zeros((), t.dtype)
    least = jnp.maximum(jnp.finfo(t.dtype).eps * _largest(t), jnp.finfo(t.dtype).tiny)

    def column(k: Any, out: Any) -> Any:
        value = at(t, k, k)

        def row(j: Any, x: Any) -> Any:
            i = k - 1 - j
            known = lax.fori_loop(i + 1, k + 1, lambda m, known: known + at(t, i, m) * at(x, m), zero)
            below = at(t, i, i) - value
            below = jnp.where(jnp.abs(below) < least, least.astype(t.dtype), below)
            return put(x, -known / below, i)

        def turned(i: Any, v: Any) -> Any:
            entry = lax.fori_loop(0, k + 1, lambda m, entry: entry + at(z, i, m) * at(x, m), zero)
            return put(v, entry, i)

        x = lax.fori_loop(0, k, row, jnp.where(rows == k, jnp.ones_like(t[0]), jnp.zeros_like(t[0])))
        return out.at[:, k].set(_normal(lax.fori_loop(0, n, turned, jnp.zeros_like(x))))

    return lax.fori_loop(0, n, column, jnp.zeros_like(t))


def _normal(v: Any) -> Any:
    """Returns a vector scaled to length one, its largest entry real."""
    v = v / jnp.max(jnp.abs(v))
    size = jnp.abs(v)
    v = v / jnp.sqrt(jnp.sum(size * size))
    largest = v[jnp.argmax(size)]
    return v * (conj(largest) / jnp.abs(largest))


def _in_pairs(w: Any, noise: Any) -> tuple[Any, Any]:
    """Returns eigenvalues of a real matrix, complex ones in exact pairs, and for each the row whose conjugate it is.

    The iterations are complex and make the two of a pair apart, each with an error of its own, as LAPACK's real ones
    do not. The row is the eigenvalue's own where it is real, the upper one of its pair, or has no partner near: a
    multiple eigenvalue falls apart in any direction. The upper one stays as it is, as its vector is of that value.
    """
    n = w.shape[0]
    rows = jnp.arange(n, dtype=jnp.int32)
    w = lax.complex(w.real, jnp.where(jnp.abs(w.imag) <= noise, 0, w.imag))

    def pair(k: Any, state: Any) -> Any:
        free, twin = state
        apart = jnp.where(free, jnp.abs(w - conj(w[k])), jnp.inf)
        j = lax.argmin(apart, 0, jnp.int32)
        is_lower = (w[k].imag > 0) & (apart[j] <= w[k].imag) & (rows == j)
        return free & ~is_lower, jnp.where(is_lower, k, twin)

    _, twin = lax.fori_loop(0, n, pair, (w.imag < 0, rows))
    return jnp.where(twin == rows, w, conj(w[twin])), twin


def _real_or_twin(v: Any, w: Any, twin: Any, noise: Any) -> Any:
    """Returns eigenvectors of a real matrix as columns: those of a pair conjugate, those of real eigenvalues real."""
    n = w.shape[0]
    v = jnp.where(twin == jnp.arange(n), v, conj(v[:, twin]))
    is_real = (w.imag == 0) & (jnp.max(jnp.abs(v.imag), 0) <= noise)
    return lax.complex(v.real, jnp.where(is_real, 0, v.imag))


@decomposition(
    "eig",
    ignores={
        "use_magma": "it chooses a library for GPUs",
        "implementation": "it chooses among ways to the same result",
        "enable_eigvec_derivs": "it is for derivatives, which JAX took while tracing",
    },
)
@batched(2)
def eig(a: Any, *, compute_left_eigenvectors: bool, compute_right_eigenvectors: bool) -> Any:
    """Returns (eigenvalues, left eigenvectors, right eigenvectors)."""
    real = not jnp.iscomplexobj(a)
    n = a.shape[0]
    if n == 0:
        z = a.astype(jnp.result_type(a, jnp.complex64))
        return (jnp.diag(z), *[z] * (compute_left_eigenvectors + compute_right_eigenvectors))
    largest = jnp.max(jnp.abs(a))
    scale = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1)
    t, z = triangle_of(a / scale)
    w = jnp.diag(t)
    vectors = []
    if compute_left_eigenvectors:
        vectors.append(_vectors(conj(t).T[::-1, ::-1], z[:, ::-1])[:, ::-1])
    if compute_right_eigenvectors:
        vectors.append(_vectors(t, z))
    if real:
        # of a real matrix: what is as small as the error of the iterations is zero
        roundings = 8 * n * jnp.finfo(a.dtype).eps
        w, twin = _in_pairs(w, roundings * jnp.sqrt(jnp.sum(jnp.square(jnp.abs(w)))))
        vectors = [_real_or_twin(v, w, twin, roundings) for v in vectors]
    return (w * scale, *vectors)


@decomposition("schur", assumes={"sort_eig_vals": False, "select_callable": None})
@batched(2)
def schur(a: Any, *, compute_schur_vectors: bool) -> Any:
    """Returns (T, Z) of a complex matrix."""
    if not jnp.iscomplexobj(a):
        raise UnsupportedError(
            f"`schur` in a loop body needs a complex matrix, got {a.dtype}",
            help='jax.scipy.linalg.schur(a, output="complex"), or a.astype(complex)',
        )
    t, z = triangle_of(a)
    return (t, z) if compute_schur_vectors else (t,)
