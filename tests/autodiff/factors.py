"""Dense factors and tridiagonal solves in place, as users write them: one, batches, sizes that data give.

Each is a function of arrays of floats and of further arguments; what it computes is compared with differences.
"""

import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from tests.autodiff.program_table import Table, adding_to
from tests.autodiff.solves import RNG, SIZE

FACTORS: Table = {}
program = adding_to(FACTORS)

SPD = np.stack([a @ a.T + 4 * np.eye(4) for a in RNG.normal(size=(3, 4, 4))])
GENERAL, SIZES = RNG.normal(size=(3, 4, 4)), np.array([4, 2, 3], np.int32)
BANDS = [RNG.uniform(-0.4, 0.4, SIZE), RNG.uniform(1, 2, SIZE), RNG.uniform(-0.4, 0.4, SIZE), RNG.normal(size=SIZE)]
BATCH = [np.stack([a, a[::-1], 0.9 * a]) for a in BANDS]
LENGTHS, START = np.array([9, 4, 6], np.int32), np.array([0, 9, 13, 19], np.int32)
FLAT = [np.concatenate([a[q, :n] for q, n in enumerate(LENGTHS)]) for a in BATCH]


def factor(a, q, n):
    """Makes the leading n by n elements of a matrix its Cholesky factor."""
    for j in qd.range(n):
        for k in qd.range(j):
            a[q, j, j] -= a[q, j, k] * a[q, j, k]
        a[q, j, j] = jnp.sqrt(a[q, j, j])
        for i in qd.range(j + 1, n):
            for k in qd.range(j):
                a[q, i, j] -= a[q, i, k] * a[q, j, k]
            a[q, i, j] /= a[q, j, j]


@program("Cholesky factors", (SPD,))
@qd.jit
def _(a):
    n = a.shape[1]
    for q in qd.range(a.shape[0]):
        factor(a, q, n)
    return a


@program("Cholesky factors, right-looking", (SPD,))
@qd.jit
def _(a):
    n = a.shape[1]
    for q in qd.range(a.shape[0]):
        for j in qd.range(n):
            a[q, j, j] = jnp.sqrt(a[q, j, j])
            for i in qd.range(j + 1, n):
                a[q, i, j] /= a[q, j, j]
            for k in qd.range(j + 1, n):
                for i in qd.range(k, n):
                    a[q, i, k] -= a[q, i, j] * a[q, k, j]
    return a


@program("Cholesky factors of sizes", (SPD,), SIZES)
@qd.jit
def _(a, sizes):
    for q in qd.range(a.shape[0]):
        n = sizes[q]
        factor(a, q, n)
    return a


@program("LU factors", (SPD,))
@qd.jit
def _(a):
    n = a.shape[1]
    for q in qd.range(a.shape[0]):
        for k in qd.range(n):
            for i in qd.range(k + 1, n):
                a[q, i, k] /= a[q, k, k]
                for j in qd.range(k + 1, n):
                    a[q, i, j] -= a[q, i, k] * a[q, k, j]
    return a


@program("LU factor, size by an argument", (SPD[0],), 4)
@qd.jit
def _(a, n):
    for k in qd.range(n, serial=True):
        for i in qd.range(k + 1, n):
            a[i, k] /= a[k, k]
            for j in qd.range(k + 1, n):
                a[i, j] -= a[i, k] * a[k, j]
    return a


@program("LU factors with pivots", (GENERAL,))
@qd.jit
def _(a):
    n = a.shape[1]
    for q in qd.range(a.shape[0]):
        for k in qd.range(n):
            p, best = qd.local(k), qd.local(jnp.abs(a[q, k, k]))
            for i in qd.range(k + 1, n):
                with qd.when(jnp.abs(a[q, i, k]) > best):
                    best.value = jnp.abs(a[q, i, k])
                    p.value = i
            for j in qd.range(n):
                t = a[q, k, j]
                a[q, k, j] = a[q, p.value, j]
                a[q, p.value, j] = t
            for i in qd.range(k + 1, n):
                a[q, i, k] /= a[q, k, k]
                for j in qd.range(k + 1, n):
                    a[q, i, j] -= a[q, i, k] * a[q, k, j]
    return a


@program("LDL factors", (SPD,))
@qd.jit
def _(a):
    n = a.shape[1]
    for q in qd.range(a.shape[0]):
        for j in qd.range(n):
            for k in qd.range(j):
                a[q, j, j] -= a[q, j, k] ** 2 * a[q, k, k]
            for i in qd.range(j + 1, n):
                for k in qd.range(j):
                    a[q, i, j] -= a[q, i, k] * a[q, j, k] * a[q, k, k]
                a[q, i, j] /= a[q, j, j]
    return a


@program("tridiagonal solve, tasks", (*BANDS,))
@qd.jit
def _(a, b, c, r):
    n = b.shape[0]
    for i in qd.range(1, n, serial=True):
        w = a[i] / b[i - 1]
        b[i] -= w * c[i - 1]
        r[i] -= w * r[i - 1]
    for _ in qd.range(1):
        r[n - 1] /= b[n - 1]
    for i in qd.range(n - 2, -1, -1, serial=True):
        r[i] = (r[i] - c[i] * r[i + 1]) / b[i]
    return r


@program("tridiagonal solve in a task", (*BANDS,))
@qd.jit
def _(a, b, c, r):
    n = b.shape[0]
    for _ in qd.range(1):
        for i in qd.range(1, n):
            w = a[i] / b[i - 1]
            b[i] -= w * c[i - 1]
            r[i] -= w * r[i - 1]
        r[n - 1] /= b[n - 1]
        for i in qd.range(n - 2, -1, -1):
            r[i] = (r[i] - c[i] * r[i + 1]) / b[i]
    return r


@program("tridiagonal solves", (*BATCH,))
@qd.jit
def _(a, b, c, r):
    n = b.shape[1]
    for q in qd.range(b.shape[0]):
        for i in qd.range(1, n):
            w = a[q, i] / b[q, i - 1]
            b[q, i] -= w * c[q, i - 1]
            r[q, i] -= w * r[q, i - 1]
        r[q, n - 1] /= b[q, n - 1]
        for i in qd.range(n - 2, -1, -1):
            r[q, i] = (r[q, i] - c[q, i] * r[q, i + 1]) / b[q, i]
    return r


@program("tridiagonal solves of lengths", (*BATCH,), LENGTHS)
@qd.jit
def _(a, b, c, r, count):
    for q in qd.range(b.shape[0]):
        n = count[q]
        for i in qd.range(1, n):
            w = a[q, i] / b[q, i - 1]
            b[q, i] -= w * c[q, i - 1]
            r[q, i] -= w * r[q, i - 1]
        r[q, n - 1] /= b[q, n - 1]
        for j in qd.range(1, n):
            i = n - 1 - j
            r[q, i] = (r[q, i] - c[q, i] * r[q, i + 1]) / b[q, i]
    return r


@program("tridiagonal solves, ragged", (*FLAT,), START)
@qd.jit
def _(a, b, c, r, start):
    for q in qd.range(start.shape[0] - 1):
        lo, hi = start[q], start[q + 1]
        for i in qd.range(lo + 1, hi):
            w = a[i] / b[i - 1]
            b[i] -= w * c[i - 1]
            r[i] -= w * r[i - 1]
        r[hi - 1] /= b[hi - 1]
        for i in qd.range(hi - 2, lo - 1, -1):
            r[i] = (r[i] - c[i] * r[i + 1]) / b[i]
    return r


@program("Givens rotations", (GENERAL[0],))
@qd.jit
def _(a):
    n = a.shape[0]
    for j in qd.range(n, serial=True):
        for i in qd.range(n - 1, j, -1):
            r = jnp.sqrt(a[i - 1, j] ** 2 + a[i, j] ** 2)
            c, s = a[i - 1, j] / r, a[i, j] / r
            for k in qd.range(n):
                t = c * a[i - 1, k] + s * a[i, k]
                a[i, k] = -s * a[i - 1, k] + c * a[i, k]
                a[i - 1, k] = t
    return a
