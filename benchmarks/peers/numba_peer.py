"""The programs written for Numba: a compiled loop over threads, fast-math on."""

from typing import Any

import numpy as np
from numba import get_num_threads, njit, prange

from benchmarks.constants import HISTOGRAM_BINS, LORENZ_DT, LORENZ_STEPS, NEIGHBOURS
from benchmarks.peers import Run

F = np.float32
INFINITE = F(np.inf)


@njit(parallel=True, fastmath=True)
def _lorenz(rho, out, steps, h):
    half, sixth, two, ten, beta = F(0.5) * h, h / F(6), F(2), F(10), F(8 / 3)
    for i in prange(rho.size):
        x, y, z, p = F(1), F(0), F(0), rho[i]
        for _ in range(steps):
            a0, a1, a2 = ten * (y - x), x * (p - z) - y, x * y - beta * z
            u, v, w = x + half * a0, y + half * a1, z + half * a2
            b0, b1, b2 = ten * (v - u), u * (p - w) - v, u * v - beta * w
            u, v, w = x + half * b0, y + half * b1, z + half * b2
            c0, c1, c2 = ten * (v - u), u * (p - w) - v, u * v - beta * w
            u, v, w = x + h * c0, y + h * c1, z + h * c2
            d0, d1, d2 = ten * (v - u), u * (p - w) - v, u * v - beta * w
            x += sixth * (a0 + two * b0 + two * c0 + d0)
            y += sixth * (a1 + two * b1 + two * c1 + d1)
            z += sixth * (a2 + two * b2 + two * c2 + d2)
        out[i] = x


def lorenz(rho: Any) -> Run:
    out = np.empty_like(rho)
    return Run(lambda _: _lorenz(rho, out, LORENZ_STEPS, F(LORENZ_DT)), lambda _: (out,))


@njit(parallel=True, fastmath={"contract", "reassoc", "arcp", "afn"})  # infinities are used
def _nearest(queries, points, distances, indices):
    for i in prange(queries.shape[0]):
        best = np.full(NEIGHBOURS, INFINITE, F)
        who = np.full(NEIGHBOURS, -1, np.int32)
        qx, qy, qz = queries[i, 0], queries[i, 1], queries[i, 2]
        for j in range(points.shape[0]):
            dx, dy, dz = points[j, 0] - qx, points[j, 1] - qy, points[j, 2] - qz
            d = dx * dx + dy * dy + dz * dz
            if d < best[NEIGHBOURS - 1]:
                k = NEIGHBOURS - 1
                while k > 0 and best[k - 1] > d:
                    best[k] = best[k - 1]
                    who[k] = who[k - 1]
                    k -= 1
                best[k] = d
                who[k] = j
        distances[i] = best
        indices[i] = who


def nearest(queries: Any, points: Any) -> Run:
    distances = np.empty((len(queries), NEIGHBOURS), F)
    indices = np.empty((len(queries), NEIGHBOURS), np.int32)
    return Run(lambda _: _nearest(queries, points, distances, indices), lambda _: (distances, indices))


@njit(parallel=True, fastmath=True)
def _total(x):
    sum_ = F(0)
    for i in prange(x.size):
        sum_ += x[i]
    return sum_


def total(x: Any) -> Run:
    return Run(lambda _: _total(x), lambda out: (np.asarray(out),))


@njit(parallel=True)
def _histogram(k, bins, parts):
    """A histogram of each part, then their sum."""
    found = np.zeros((parts, bins), np.int32)
    for p in prange(parts):
        for i in range(k.size * p // parts, k.size * (p + 1) // parts):
            found[p, k[i]] += 1
    return found.sum(0)


def histogram(k: Any) -> Run:
    return Run(lambda _: _histogram(k, HISTOGRAM_BINS, 4 * get_num_threads()), lambda out: (out,))


PROGRAMS = {"lorenz": lorenz, "nearest": nearest, "sum": total, "histogram": histogram}
