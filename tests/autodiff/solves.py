"""Sparse solvers that change arrays in place, as users write them: substitution, sweeps, levels.

Each is a function of arrays of floats and of further arguments; what it computes is compared with differences.
"""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from tests.autodiff.program_table import Table, adding_to

SOLVES: Table = {}
program = adding_to(SOLVES)

def structure(columns):
    """Rows of a sparse matrix, from the columns of each."""
    row = np.cumsum([0, *map(len, columns)]).astype(np.int32)
    return row, np.concatenate([np.array(c, np.int32) for c in columns])


SIZE = 9
RNG = np.random.default_rng(0)
LOWER_ROW, LOWER_COL = structure([[], [0], [], [0, 2], [1, 3], [], [2, 4, 5], [0], [6, 7]])
UPPER_ROW, UPPER_COL = structure([[3, 7], [2], [5, 6, 8], [], [5], [8], [7], [], []])
ROW, COL = structure([[2, 5], [0], [1, 4, 8], [], [3, 7], [0, 8], [2], [6], [1, 7]])
LOWER, UPPER, V = (RNG.uniform(-0.4, 0.4, len(c)) for c in (LOWER_COL, UPPER_COL, COL))
B, X, D = RNG.normal(size=SIZE), RNG.normal(size=SIZE), RNG.uniform(1, 2, SIZE)
W = np.float64(1.3)
LOWER_ROWS, LOWER_COLS = jnp.asarray(LOWER_ROW), jnp.asarray(LOWER_COL)
CAPTURED = (jnp.asarray(ROW), jnp.asarray(COL))
ORDER = jnp.array([0, 2, 5, 1, 3, 7, 4, 6, 8], jnp.int32)
BEGINS = jnp.array([0, 3, 6, 7, 8, 9], jnp.int32)
"""Where levels begin: the rows of a level need those of the levels before."""
GRID, SOURCE = RNG.normal(size=(2, 5, 6))


def unknown(x, v, d, b, row, col, r):
    """One row of a sweep, whose length is not known."""
    s = qd.local(b[r])
    for k in qd.range(row[r], row[r + 1]):
        s.value -= v[k] * x[col[k]]
    x[r] = s / d[r]


def known(y, b, v, d, r):
    """One row of a triangular solve, of a captured matrix."""
    s = qd.local(b[r])
    for k in qd.range(LOWER_ROWS[r], LOWER_ROWS[r + 1]):
        s.value -= v[k] * y[LOWER_COLS[k]]
    y[r] = s / d[r]


@program("forward substitution, rows", (B, LOWER, D))
@qd.jit
def _(b, v, d):
    row, col = LOWER_ROWS, LOWER_COLS
    y = qd.zeros_like(b)
    for r in qd.range(b.shape[0], serial=True):
        s = qd.local(b[r])
        for k in qd.range(row[r], row[r + 1]):
            s.value -= v[k] * y[col[k]]
        y[r] = s / d[r]
    return y


@program("forward substitution in place", (B, LOWER, D), LOWER_ROW, LOWER_COL)
@qd.jit
def _(b, v, d, row, col):
    for r in qd.range(b.shape[0], serial=True):
        for k in qd.range(row[r], row[r + 1]):
            b[r] -= v[k] * b[col[k]]
        b[r] /= d[r]
    return b


@program("back substitution in place", (B, UPPER, D), UPPER_ROW, UPPER_COL)
@qd.jit
def _(b, v, d, row, col):
    n = b.shape[0]
    for r in qd.range(n - 1, -1, -1, serial=True):
        for k in qd.range(row[r], row[r + 1]):
            b[r] -= v[k] * b[col[k]]
        b[r] = b[r] / d[r]
    return b


@program("back substitution at a falling index", (B, UPPER, D), UPPER_ROW, UPPER_COL)
@qd.jit
def _(b, v, d, row, col):
    n = b.shape[0]
    for i in qd.range(n, serial=True):
        r = n - 1 - i
        for k in qd.range(row[r], row[r + 1]):
            b[r] -= v[k] * b[col[k]]
        b[r] = b[r] / d[r]
    return b


@program("forward substitution, columns", (B, UPPER, D), UPPER_ROW, UPPER_COL)
@qd.jit
def _(b, v, d, start, rows):
    x = qd.zeros_like(b)
    for c in qd.range(b.shape[0], serial=True):
        x[c] = b[c] / d[c]
        for k in qd.range(start[c], start[c + 1]):
            b[rows[k]] -= v[k] * x[c]
    return x


@program("forward substitution, columns in place", (B, UPPER, D), UPPER_ROW, UPPER_COL)
@qd.jit
def _(b, v, d, start, rows):
    for c in qd.range(b.shape[0], serial=True):
        b[c] = b[c] / d[c]
        for k in qd.range(start[c], start[c + 1]):
            b[rows[k]] -= v[k] * b[c]
    return b


@program("back substitution, columns in place", (B, LOWER, D), LOWER_ROW, LOWER_COL)
@qd.jit
def _(b, v, d, start, rows):
    n = b.shape[0]
    for c in qd.range(n - 1, -1, -1, serial=True):
        b[c] /= d[c]
        for k in qd.range(start[c], start[c + 1]):
            b[rows[k]] -= v[k] * b[c]
    return b


@program("Gauss-Seidel, one sweep", (X, V, D, B), ROW, COL)
@qd.jit
def _(x, v, d, b, row, col):
    for r in qd.range(x.shape[0], serial=True):
        unknown(x, v, d, b, row, col, r)
    return x


@program("Gauss-Seidel, five sweeps of Python", (X, V, D, B), ROW, COL)
@qd.jit
def _(x, v, d, b, row, col):
    for _ in range(5):
        for r in qd.range(x.shape[0], serial=True):
            unknown(x, v, d, b, row, col, r)
    return x


@program("Gauss-Seidel, five sweeps in a task", (X, V, D, B), ROW, COL)
@qd.jit
def _(x, v, d, b, row, col):
    for _ in qd.range(5, serial=True):
        for r in qd.range(x.shape[0]):
            unknown(x, v, d, b, row, col, r)
    return x


@program("Gauss-Seidel, captured rows", (X, V, D, B))
@qd.jit
def _(x, v, d, b):
    row, col = CAPTURED
    for _ in qd.range(5, serial=True):
        for r in qd.range(x.shape[0]):
            unknown(x, v, d, b, row, col, r)
    return x


@program("Gauss-Seidel, sweeps by an argument", (X, V, D, B), ROW, COL, 5)
@qd.jit
def _(x, v, d, b, row, col, n):
    for _ in qd.range(n, serial=True):
        for r in qd.range(x.shape[0]):
            unknown(x, v, d, b, row, col, r)
    return x


@program("Gauss-Seidel, sweeps by an argument with most", (X, V, D, B), ROW, COL, 5)
@qd.jit
def _(x, v, d, b, row, col, n):
    for _ in qd.range(n, serial=True, most=8):
        for r in qd.range(x.shape[0]):
            s = qd.local(b[r])
            for k in qd.range(row[r], row[r + 1], most=4):
                s.value -= v[k] * x[col[k]]
            x[r] = s / d[r]
    return x


@program("Gauss-Seidel, until convergence in a task", (X, V, D, B), ROW, COL)
@qd.jit
def _(x, v, d, b, row, col):
    for _ in qd.range(1):
        change, n = qd.local(1.0), qd.local(0)
        for _ in qd.while_(lambda: (change.value > 1e-6) & (n.value < 40)):  # noqa: B023 - traced at once
            change.value = 0.0
            for r in qd.range(x.shape[0]):
                s = qd.local(b[r])
                for k in qd.range(row[r], row[r + 1]):
                    s.value -= v[k] * x[col[k]]
                new = s / d[r]
                change.value = jnp.maximum(change.value, jnp.abs(new - x[r]))
                x[r] = new
            n += 1
    return x


@program("Gauss-Seidel, until convergence with most", (X, V, D, B), ROW, COL)
@qd.jit
def _(x, v, d, b, row, col):
    for _ in qd.range(1):
        change = qd.local(1.0)
        for _ in qd.while_(lambda: change.value > 1e-6, most=40):  # noqa: B023 - traced at once
            change.value = 0.0
            for r in qd.range(x.shape[0]):
                s = qd.local(b[r])
                for k in qd.range(row[r], row[r + 1], most=4):
                    s.value -= v[k] * x[col[k]]
                new = s / d[r]
                change.value = jnp.maximum(change.value, jnp.abs(new - x[r]))
                x[r] = new
    return x


@program("Gauss-Seidel, until convergence around tasks", (X, V, D, B), ROW, COL)
@qd.jit
def _(x, v, d, b, row, col):
    change, n = qd.ones((), x.dtype), qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: (change[()] > 1e-6) & (n[()] < 40)):
        for _ in qd.range(1):
            change[()] = 0.0
            n[()] += 1
        for r in qd.range(x.shape[0], serial=True):
            s = qd.local(b[r])
            for k in qd.range(row[r], row[r + 1]):
                s.value -= v[k] * x[col[k]]
            new = s / d[r]
            change[()] = jnp.maximum(change[()], jnp.abs(new - x[r]))
            x[r] = new
    return x


@program("successive over-relaxation", (X, V, D, B, W), ROW, COL)
@qd.jit
def _(x, v, d, b, w, row, col):
    for _ in qd.range(4, serial=True):
        for r in qd.range(x.shape[0]):
            s = qd.local(b[r])
            for k in qd.range(row[r], row[r + 1]):
                s.value -= v[k] * x[col[k]]
            x[r] = (1 - w) * x[r] + w * s / d[r]
    return x


@program("successive over-relaxation in place", (X, V, D, B, W), ROW, COL)
@qd.jit
def _(x, v, d, b, w, row, col):
    for r in qd.range(x.shape[0], serial=True):
        x[r] *= 1 - w
        for k in qd.range(row[r], row[r + 1]):
            x[r] -= w * v[k] * x[col[k]] / d[r]
        x[r] += w * b[r] / d[r]
    return x


@program("red and black, tasks", (GRID, SOURCE, W))
@qd.jit
def _(u, f, w):
    n, m = u.shape
    for _ in range(3):
        for c in range(2):
            for i, j in qd.ndrange((1, n - 1), (1, m - 1)):
                with qd.when((i + j) % 2 == c):
                    u[i, j] += w * (0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - f[i, j]) - u[i, j])
    return u


@program("red and black, sweeps by an argument", (GRID, SOURCE, W), 3)
@qd.jit
def _(u, f, w, sweeps):
    n, m = u.shape
    for _ in qd.range(sweeps, serial=True):
        for c in qd.range(2):
            for i in qd.range(1, n - 1):
                for j in qd.range(1, m - 1):
                    with qd.when((i + j) % 2 == c):
                        u[i, j] += w * (
                            0.25 * (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - f[i, j]) - u[i, j]
                        )
    return u


@program("levels by Python", (B, LOWER, D))
@qd.jit
def _(b, v, d):
    y = qd.zeros_like(b)
    for lo, hi in pairwise((0, 3, 6, 7, 8, 9)):
        for p in qd.range(lo, hi):
            known(y, b, v, d, ORDER[p])
    return y


@program("levels around tasks", (B, LOWER, D))
@qd.jit
def _(b, v, d):
    y, level = qd.zeros_like(b), qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: level[()] < BEGINS.shape[0] - 1):
        for p in qd.range(BEGINS[level[()]], BEGINS[level[()] + 1]):
            known(y, b, v, d, ORDER[p])
        for _ in qd.range(1):
            level[()] += 1
    return y


@program("levels in a task", (B, LOWER, D))
@qd.jit
def _(b, v, d):
    y = qd.zeros_like(b)
    for level in qd.range(BEGINS.shape[0] - 1, serial=True):
        for p in qd.range(BEGINS[level], BEGINS[level + 1]):
            known(y, b, v, d, ORDER[p])
    return y
