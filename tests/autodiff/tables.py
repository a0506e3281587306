"""Tables and rows that programs change in place, as users write them: dynamic programming, recurrences, stencils.

Each is a function of arrays of floats and of further arguments; what it computes is compared with differences.
"""

import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from tests.autodiff.program_table import Table, adding_to
from tests.autodiff.solves import COL, GRID, RNG, ROW, V

TABLES: Table = {}
program = adding_to(TABLES)

COST = RNG.uniform(0.1, 1, (6, 7))
COSTS = np.stack([COST, COST[::-1], 0.5 * COST])
ROWS, COLUMNS = np.array([6, 4, 3], np.int32), np.array([7, 5, 7], np.int32)
SCORE, GAP = RNG.uniform(-1, 1, (6, 7)), np.float64(0.3)
EMIT, MOVE = RNG.normal(size=(7, 4)), RNG.normal(size=(4, 4))
VALUE, WEIGHT = RNG.uniform(0.5, 2, 4), np.array([2, 3, 1, 4], np.int32)
LINE, START = RNG.uniform(0.3, 1, 20), np.array([0, 8, 9, 9, 13, 20], np.int32)
RATE, SMALL, CAPTURED = np.float64(0.7), np.float64(0.2), jnp.asarray(START)
LEFT, RIGHT = RNG.normal(size=(2, 9))
PATHS = RNG.uniform(0.1, 2, (5, 5))
FIRST = np.array([0, 3, 2, 5, 1, 0, 4, 2], np.int32)
SECOND, POINTS, REST = (FIRST + 1) % 6, RNG.normal(size=(6, 2)), RNG.uniform(0.5, 1, 8)
PARENT = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3], np.int32)


def three_sweeps(x, a, start):
    """Changes rows of a flat array three times; `start` has where they begin."""
    for i in qd.range(start.shape[0] - 1):
        for _ in qd.range(3):
            for j in qd.range(start[i] + 1, start[i + 1] - 1):
                x[j] += a * jnp.sin(x[j - 1]) * x[j + 1]
    return x


def softmin(a, b, c):
    """A smooth least of three numbers."""
    return -jnp.logaddexp(-a, jnp.logaddexp(-b, -c))


def start_table(n, m, like):
    """A table that is large outside of its corner."""
    t = qd.full((n + 1, m + 1), 10.0, like.dtype)
    for _ in qd.range(1):
        t[0, 0] = 0.0
    return t


@program("time warping", (COST,))
@qd.jit
def _(c):
    n, m = c.shape
    t = start_table(n, m, c)
    for i in qd.range(1, n + 1, serial=True):
        for j in qd.range(1, m + 1):
            t[i, j] = c[i - 1, j - 1] + softmin(t[i - 1, j], t[i, j - 1], t[i - 1, j - 1])
    return t


@program("time warping, sizes by arguments", (COST,), 6, 7)
@qd.jit
def _(c, n, m):
    t = start_table(*c.shape, c)
    for i in qd.range(1, n + 1, serial=True):
        for j in qd.range(1, m + 1):
            t[i, j] = c[i - 1, j - 1] + softmin(t[i - 1, j], t[i, j - 1], t[i - 1, j - 1])
    return t


@program("time warping, wave fronts", (COST,))
@qd.jit
def _(c):
    n, m = c.shape
    t, s = start_table(n, m, c), qd.full((), 2, jnp.int32)
    for _ in qd.while_(lambda: s[()] <= n + m):
        for i in qd.range(1, n + 1):
            j = s[()] - i
            with qd.when((j >= 1) & (j <= m)):
                t[i, j] = c[i - 1, j - 1] + softmin(t[i - 1, j], t[i, j - 1], t[i - 1, j - 1])
        for _ in qd.range(1):
            s[()] += 1
    return t


@program("time warping, two rows", (COST,))
@qd.jit
def _(c):
    n, m = c.shape
    t = qd.full((2, m + 1), 10.0, c.dtype)
    out = qd.zeros(m + 1, c.dtype)
    for _ in qd.range(1):
        t[0, 0] = 0.0
        for i in qd.range(1, n + 1):
            now, old = i % 2, (i + 1) % 2
            t[now, 0] = 10.0
            for j in qd.range(1, m + 1):
                t[now, j] = c[i - 1, j - 1] + softmin(t[old, j], t[now, j - 1], t[old, j - 1])
        for j in qd.range(m + 1):
            out[j] = t[n % 2, j]
    return out


@program("time warping, ragged", (COSTS,), ROWS, COLUMNS)
@qd.jit
def _(c, rows, cols):
    q_, n, m = c.shape
    t = qd.full((q_, n + 1, m + 1), 10.0, c.dtype)
    for q in qd.range(q_):
        t[q, 0, 0] = 0.0
        for i in qd.range(1, rows[q] + 1):
            for j in qd.range(1, cols[q] + 1):
                t[q, i, j] = c[q, i - 1, j - 1] + softmin(t[q, i - 1, j], t[q, i, j - 1], t[q, i - 1, j - 1])
    return t


@program("local alignment", (SCORE, GAP))
@qd.jit
def _(s, gap):
    n, m = s.shape
    h = qd.zeros((n + 1, m + 1), s.dtype)
    for i in qd.range(1, n + 1, serial=True):
        for j in qd.range(1, m + 1):
            h[i, j] = jnp.maximum(
                0.0, jnp.maximum(h[i - 1, j - 1] + s[i - 1, j - 1], jnp.maximum(h[i - 1, j], h[i, j - 1]) - gap)
            )
    return h


@program("edit distance, one row", (SCORE, GAP))
@qd.jit
def _(s, gap):
    n, m = s.shape
    h = qd.zeros(m + 1, s.dtype)
    for _ in qd.range(1):
        for j in qd.range(1, m + 1):
            h[j] = h[j - 1] + gap
        for i in qd.range(n):
            diagonal = qd.local(h[0])
            h[0] = h[0] + gap
            for j in qd.range(1, m + 1):
                old = h[j]
                h[j] = jnp.minimum(diagonal + s[i, j - 1], jnp.minimum(h[j], h[j - 1]) + gap)
                diagonal.value = old
    return h


@program("most likely states", (EMIT, MOVE))
@qd.jit
def _(e, a):
    v = qd.copy(e)
    for t in qd.range(1, e.shape[0], serial=True):
        for s in qd.range(e.shape[1]):
            best = qd.local(v[t - 1, 0] + a[0, s])
            for p in qd.range(1, e.shape[1]):
                best.value = jnp.maximum(best, v[t - 1, p] + a[p, s])
            v[t, s] = e[t, s] + best
    return v


@program("most likely states, traced back", (EMIT, MOVE), 7)
@qd.jit
def _(e, a, n):
    v = qd.copy(e)
    arg = qd.zeros(e.shape, jnp.int32)
    score = qd.zeros((), e.dtype)
    for t in qd.range(1, n, serial=True):
        for s in qd.range(e.shape[1]):
            best, who = qd.local(v[t - 1, 0] + a[0, s]), qd.local(0)
            for p in qd.range(1, e.shape[1]):
                here = v[t - 1, p] + a[p, s]
                with qd.when(here > best):
                    best.value = here
                    who.value = p
            v[t, s] = e[t, s] + best
            arg[t, s] = who
    for _ in qd.range(1):
        s = qd.local(0)
        for k in qd.range(1, n):
            t = n - k
            p = arg[t, s.value]
            score[()] += a[p, s.value] * e[t, s.value] ** 2
            s.value = p
    return v, score


@program("knapsack in place", (VALUE,), WEIGHT)
@qd.jit
def _(v, weight):
    t = qd.zeros(10, v.dtype)
    for i in qd.range(v.shape[0], serial=True):
        for w in qd.range(9, weight[i] - 1, -1):
            t[w] = jnp.maximum(t[w], t[w - weight[i]] + v[i])
    return t


@program("knapsack", (VALUE,), WEIGHT)
@qd.jit
def _(v, weight):
    n = v.shape[0]
    t = qd.zeros((n + 1, 10), v.dtype)
    for i in qd.range(n, serial=True):
        for w in qd.range(10):
            t[i + 1, w] = t[i, w]
            with qd.when(w >= weight[i]):
                t[i + 1, w] = jnp.maximum(t[i, w], t[i, w - weight[i]] + v[i])
    return t


@program("knapsack without limits", (VALUE,), WEIGHT, 9)
@qd.jit
def _(v, weight, cap):
    t = qd.zeros(10, v.dtype)
    for w in qd.range(1, cap + 1, serial=True):
        for i in qd.range(v.shape[0]):
            with qd.when(weight[i] <= w):
                t[w] = jnp.maximum(t[w], t[w - weight[i]] + v[i])
    return t


@program("recurrence on ragged rows", (LINE, RATE), START)
@qd.jit
def _(x, a, start):
    for i in qd.range(start.shape[0] - 1):
        for j in qd.range(start[i] + 1, start[i + 1]):
            x[j] += a * jnp.sin(x[j - 1])
    return x


@program("recurrence on ragged rows under a condition", (LINE, RATE), START)
@qd.jit
def _(x, a, start):
    for i in qd.range(start.shape[0] - 1):
        for j in qd.range(start[i], start[i + 1]):
            with qd.when(j > start[i]):
                x[j] = x[j] + a * jnp.sin(x[j - 1])
    return x


@program("recurrence of second order on ragged rows", (LINE, RATE), START)
@qd.jit
def _(x, a, start):
    for i in qd.range(start.shape[0] - 1):
        for j in qd.range(start[i] + 2, start[i + 1]):
            x[j] += a * x[j - 1] * x[j - 2]
    return x


@program("ragged rows forth and back", (LINE, RATE), START)
@qd.jit
def _(x, a, start):
    for i in qd.range(start.shape[0] - 1):
        lo, hi = start[i], start[i + 1]
        for j in qd.range(lo + 1, hi):
            x[j] += a * jnp.sin(x[j - 1])
        for j in qd.range(hi - 2, lo - 1, -1):
            x[j] -= 0.5 * x[j + 1] ** 2
    return x


@program("ragged rows, three sweeps", (LINE, RATE), START)
@qd.jit
def _(x, a, start):
    return three_sweeps(x, a, start)


@program("captured ragged rows, three sweeps", (LINE, RATE))
@qd.jit
def _(x, a):
    return three_sweeps(x, a, CAPTURED)


@program("alternating directions", (GRID, RATE))
@qd.jit
def _(u, k):
    n, m = u.shape
    c = qd.zeros(max(n, m), u.dtype)
    for _ in qd.range(1):
        c[0] = -k / (1 + 2 * k)
        for i in qd.range(1, max(n, m)):
            c[i] = -k / (1 + 2 * k + k * c[i - 1])
    for _ in range(2):
        for i in qd.range(n):
            u[i, 0] = u[i, 0] / (1 + 2 * k)
            for j in qd.range(1, m):
                u[i, j] = (u[i, j] + k * u[i, j - 1]) / (1 + 2 * k + k * c[j - 1])
            for j in qd.range(m - 2, -1, -1):
                u[i, j] -= c[j] * u[i, j + 1]
        for j in qd.range(m):
            u[0, j] = u[0, j] / (1 + 2 * k)
            for i in qd.range(1, n):
                u[i, j] = (u[i, j] + k * u[i - 1, j]) / (1 + 2 * k + k * c[i - 1])
            for i in qd.range(n - 2, -1, -1):
                u[i, j] -= c[i] * u[i + 1, j]
    return u


@program("stencil in place", (GRID, SMALL), 3)
@qd.jit
def _(u, k, steps):
    n, m = u.shape
    for _ in qd.range(steps, serial=True):
        for i in qd.range(1, n - 1):
            for j in qd.range(1, m - 1):
                u[i, j] += k * jnp.sin(u[i - 1, j]) * u[i, j - 1] - k * u[i + 1, j] * u[i, j + 1]
    return u


@program("two arrays, one sweep", (LEFT, RIGHT, RATE))
@qd.jit
def _(x, v, k):
    for i in qd.range(1, x.shape[0] - 1, serial=True):
        v[i] += k * (x[i - 1] - 2 * x[i] + x[i + 1])
        x[i] += k * jnp.sin(v[i]) * v[i - 1]
    return x, v


@program("two arrays, sweeps by an argument", (LEFT, RIGHT, SMALL), 4)
@qd.jit
def _(x, v, k, n):
    for _ in qd.range(n, serial=True):
        for i in qd.range(1, x.shape[0] - 1):
            v[i] += k * (x[i - 1] - 2 * x[i] + x[i + 1])
            x[i] += k * jnp.sin(v[i]) * v[i - 1]
    return x, v


@program("two arrays, a recurrence", (LEFT, RIGHT))
@qd.jit
def _(a, b):
    for i in qd.range(1, a.shape[0], serial=True):
        t = jnp.sin(a[i - 1]) * b[i]
        b[i] = jnp.cos(b[i - 1]) + a[i]
        a[i] = t
    return a, b


@program("power iteration in a task", (LEFT, V), ROW, COL, 3)
@qd.jit
def _(x, v, row, col, n):
    y = qd.zeros_like(x)
    for _ in qd.range(n, serial=True):
        total = qd.local(0.0)
        for r in qd.range(x.shape[0]):
            s = qd.local(x[r])
            for k in qd.range(row[r], row[r + 1]):
                s.value += v[k] * x[col[k]]
            y[r] = s
            total += s * s
        for r in qd.range(x.shape[0]):
            x[r] = y[r] / jnp.sqrt(total.value)
    return x


@program("power iteration around tasks", (LEFT, V), ROW, COL)
@qd.jit
def _(x, v, row, col):
    y, total, n = qd.zeros_like(x), qd.zeros((), x.dtype), qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: n[()] < 3):
        for _ in qd.range(1):
            total[()] = 0.0
            n[()] += 1
        for r in qd.range(x.shape[0]):
            s = qd.local(x[r])
            for k in qd.range(row[r], row[r + 1]):
                s.value += v[k] * x[col[k]]
            y[r] = s
            total[()] += s * s
        for r in qd.range(x.shape[0]):
            x[r] = y[r] / jnp.sqrt(total[()])
    return x


@program("shortest paths", (PATHS,))
@qd.jit
def _(w):
    n = w.shape[0]
    for k in qd.range(n, serial=True):
        for i in qd.range(n):
            for j in qd.range(n):
                w[i, j] = jnp.minimum(w[i, j], w[i, k] + w[k, j])
    return w


@program("constraints in order", (POINTS, REST), FIRST, SECOND, 3)
@qd.jit
def _(p, r, a, b, n):
    for _ in qd.range(n, serial=True):
        for c in qd.range(r.shape[0]):
            i, j = a[c], b[c]
            x, y = p[i, 0] - p[j, 0], p[i, 1] - p[j, 1]
            size = jnp.sqrt(x * x + y * y)
            k = 0.5 * (size - r[c]) / size
            p[i, 0] -= k * x
            p[i, 1] -= k * y
            p[j, 0] += k * x
            p[j, 1] += k * y
    return p


@program("insertion sort", (LEFT,))
@qd.jit
def _(x):
    for i in qd.range(1, x.shape[0], serial=True):
        j = qd.local(i)
        for _ in qd.while_(lambda: j.value > 0):  # noqa: B023 - traced at once
            a, b = x[j - 1], x[j.value]
            qd.break_if(a <= b)
            x[j - 1] = b
            x[j.value] = a
            j -= 1
    return x


@program("prefix products", (LINE[:8],))
@qd.jit
def _(x):
    for p in qd.range(3, serial=True):
        d = 1 << p
        for k in qd.range(8 - d):
            i = 7 - k
            x[i] *= x[i - d]
    return x


@program("a tree, upwards", (LEFT, RIGHT), PARENT)
@qd.jit
def _(x, w, par):
    n = x.shape[0]
    for k in qd.range(1, n, serial=True):
        i = n - k
        x[par[i]] += w[i] * jnp.sin(x[i])
    return x


@program("a tree, downwards", (LEFT, RIGHT), PARENT)
@qd.jit
def _(x, w, par):
    for i in qd.range(1, x.shape[0], serial=True):
        x[i] += w[i] * jnp.sin(x[par[i]])
    return x


@program("swept, squared and swept back", (np.linspace(0.3, 1.4, 10),), 9)
@qd.jit
def _(u, n):
    for i in qd.range(1, n, serial=True):
        u[i] = 0.5 * jnp.sin(u[i - 1]) + 0.3 * u[i] * u[i + 1]
    for i in qd.range(u.shape[0]):
        u[i] = u[i] * u[i]
    for i in qd.range(n - 1, 0, -1, serial=True):
        u[i] = jnp.cos(u[i + 1]) * u[i - 1]
    return u


@program("bounds that a later task changes", (LEFT,), FIRST)
@qd.jit
def _(x, n):
    out = qd.zeros_like(x)
    for i in qd.range(n.shape[0]):
        a = qd.local(x[i])
        for _ in qd.range(n[i]):
            a.value = jnp.sin(a.value) + x[i]
        out[i] = a.value
    for i in qd.range(n.shape[0]):
        n[i] = 0
    return out, n
