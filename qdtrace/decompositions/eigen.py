"""Eigenvalues of matrices that are not Hermitian: complex QR iterations with one shift, each lane until it is done.

A Hessenberg form is turned into an upper triangle (Golub and Van Loan, 7.5). Eigenvalues come in the order in which
the triangle has them, which is not LAPACK's.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from qdtrace.decompositions.entries import at, put, with_columns
from qdtrace.decompositions.householder import hessenberg, householder_product
from qdtrace.decompositions.linalg import conj, pivot_size, squared
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


def _entries(n: int, dtype: Any, entry: Any) -> Any:
    """Returns the n by n matrix whose entry i, j is `entry(i, j)`, by a loop."""
    column = lambda i: lambda j, a: put(a, entry(i, j).astype(dtype), i, j)  # noqa: E731
    return lax.fori_loop(0, n, lambda i, a: lax.fori_loop(0, n, column(i), a), jnp.zeros((n, n), dtype))


def _over_entries(a: Any, combine: Any) -> Any:
    """Returns a real number that `combine(entry, number)` makes of each entry in turn, from zero on."""
    n, m = a.shape
    row = lambda i, found: lax.fori_loop(0, m, lambda j, found: combine(at(a, i, j), found), found)  # noqa: E731
    return lax.fori_loop(0, n, row, jnp.zeros((), a.real.dtype))


def _largest(a: Any) -> Any:
    """Returns the modulus of the largest entry."""
    return _over_entries(a, lambda x, most: jnp.maximum(most, jnp.abs(x)))


def triangle_of(a: Any) -> tuple[Any, Any]:
    """Returns complex (T, Z) with a = Z T Z^H, T an upper triangle; NaN if the iterations did not end."""
    n, dtype = a.shape[0], jnp.result_type(a, jnp.complex64)
    if n <= 1:
        return a.astype(dtype), jnp.ones_like(a, dtype)
    packed, taus = hessenberg(a)
    unitary = _unitary_of(packed, taus)
    t = _entries(n, dtype, lambda i, j: jnp.where(i <= j + 1, at(packed, i, j), 0))
    z = _entries(n, dtype, lambda i, j: at(unitary, i, j))
    eps = jnp.finfo(a.dtype).eps
    norm = jnp.sqrt(_over_entries(a, lambda x, total: total + squared(x)))

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
    t = _entries(n, dtype, lambda i, j: jnp.where(failed, jnp.nan, jnp.where(i <= j, at(t, i, j), 0)))
    return t, _entries(n, dtype, lambda i, j: jnp.where(failed, jnp.nan, at(z, i, j)))


def _divided(x: Any, size: Any) -> Any:
    """Returns a number over a real one; JAX would divide complex numbers."""
    return lax.complex(x.real / size, x.imag / size) if jnp.iscomplexobj(x) else x / size


def _vectors(t: Any, z: Any) -> Any:
    """Returns eigenvectors of z t z^H, t an upper triangle, as columns: by substitution from the diagonal up.

    Entries of a defective matrix's grow by 1/eps a row, so a vector is scaled on the way, as in LAPACK.
    """
    n, zero = t.shape[0], jnp.zeros((), t.dtype)
    eps, tiny = jnp.finfo(t.dtype).eps, jnp.finfo(t.dtype).tiny
    least = jnp.maximum(eps * _largest(t), tiny)

    def column(k: Any, out: Any) -> Any:
        value = at(t, k, k)

        def row(j: Any, x: Any) -> Any:
            i = k - 1 - j
            known = lax.fori_loop(i + 1, k + 1, lambda m, known: known + at(t, i, m) * at(x, m), zero)
            below = at(t, i, i) - value
            below = jnp.where(jnp.abs(below) < least, least.astype(t.dtype), below)
            entry = -known / below
            size = pivot_size(entry)
            first = jnp.where(size > 1 / eps, i, k + 1)
            return lax.fori_loop(first, k + 1, lambda m, x: put(x, _divided(at(x, m), size), m), put(x, entry, i))

        def turned(i: Any, v: Any) -> Any:
            entry = lax.fori_loop(0, k + 1, lambda m, entry: entry + at(z, i, m) * at(x, m), zero)
            return put(v, entry, i)

        x = lax.fori_loop(0, k, row, put(jnp.zeros_like(t[0]), jnp.ones((), t.dtype), k))
        return _put_normal(out, lax.fori_loop(0, n, turned, jnp.zeros_like(x)), k)

    return lax.fori_loop(0, n, column, jnp.zeros_like(t))


def _put_normal(out: Any, v: Any, k: Any) -> Any:
    """Returns a matrix with a vector as column k, scaled to length one, its largest entry real."""
    n, zero = v.shape[0], jnp.zeros((), v.real.dtype)

    def larger(i: Any, found: Any) -> Any:
        size = jnp.abs(at(v, i))
        return jnp.where(size > found[0], size, found[0]), jnp.where(size > found[0], i, found[1])

    most, j = lax.fori_loop(0, n, larger, (zero, jnp.zeros_like(k)))
    length = jnp.sqrt(lax.fori_loop(0, n, lambda i, total: total + squared(_divided(at(v, i), most)), zero))
    turn = _divided(_divided(conj(at(v, j)), most), length)
    return lax.fori_loop(0, n, lambda i, out: put(out, _divided(at(v, i), most) * turn, i, k), out)


def _in_pairs(w: Any, noise: Any) -> tuple[Any, Any]:
    """Returns eigenvalues of a real matrix, complex ones in exact pairs, and for each the row whose conjugate it is.

    The iterations are complex and make the two of a pair apart, each with an error of its own, as LAPACK's real ones
    do not. The row is the eigenvalue's own where it is real, the upper one of its pair, or has no partner near: a
    multiple eigenvalue falls apart in any direction. The upper one stays as it is, as its vector is of that value.
    """
    n = w.shape[0]
    w = lax.complex(w.real, jnp.where(jnp.abs(w.imag) <= noise, 0, w.imag))

    def pair(k: Any, state: Any) -> Any:
        free, twin = state
        mirrored, above = conj(at(w, k)), at(w, k).imag

        def nearer(j: Any, found: Any) -> Any:
            apart = jnp.where(at(free, j), jnp.abs(at(w, j) - mirrored), jnp.inf)
            nearest = apart < found[0]
            return jnp.where(nearest, apart, found[0]), jnp.where(nearest, j, found[1])

        apart, j = lax.fori_loop(0, n, nearer, (jnp.full((), jnp.inf, noise.dtype), jnp.zeros_like(k)))
        is_lower = (above > 0) & (apart <= above)
        return put(free, at(free, j) & ~is_lower, j), put(twin, jnp.where(is_lower, k, at(twin, j)), j)

    _, twin = lax.fori_loop(0, n, pair, (w.imag < 0, jnp.arange(n)))
    upper = lambda k, w: put(w, jnp.where(at(twin, k) == k, at(w, k), conj(at(w, at(twin, k)))), k)  # noqa: E731
    return lax.fori_loop(0, n, upper, w), twin


def _real_or_twin(v: Any, w: Any, twin: Any, noise: Any) -> Any:
    """Returns eigenvectors of a real matrix as columns: those of a pair conjugate, those of real eigenvalues real."""
    n = w.shape[0]

    def column(k: Any, out: Any) -> Any:
        j, zero = at(twin, k), jnp.zeros((), noise.dtype)
        most = lax.fori_loop(0, n, lambda i, most: jnp.maximum(most, jnp.abs(at(v, i, j).imag)), zero)
        sign = jnp.where((at(w, k).imag == 0) & (most <= noise), 0, jnp.where(j == k, 1, -1))
        entry = lambda i: lax.complex(at(v, i, j).real, jnp.where(sign == 0, 0, at(v, i, j).imag * sign))  # noqa: E731
        return lax.fori_loop(0, n, lambda i, out: put(out, entry(i), i, k), out)

    return lax.fori_loop(0, n, column, jnp.zeros_like(v))


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
    largest = _largest(a)
    scale = jnp.where((largest > 0) & (largest < jnp.inf), largest, 1)
    t, z = triangle_of(_entries(n, a.dtype, lambda i, j: _divided(at(a, i, j), scale)))
    w = jnp.diag(t)
    vectors = []
    if compute_left_eigenvectors:
        vectors.append(_vectors(conj(t).T[::-1, ::-1], z[:, ::-1])[:, ::-1])
    if compute_right_eigenvectors:
        vectors.append(_vectors(t, z))
    if real:
        # of a real matrix: what is as small as the error of the iterations is zero
        roundings = 8 * n * jnp.finfo(a.dtype).eps
        roundings = jnp.asarray(roundings, a.dtype)
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
