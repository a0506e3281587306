"""The programs written for Quadrants. It reads annotations, so they must not become strings."""

import os
from typing import Any

import quadrants as q

from benchmarks.constants import (
    HISTOGRAM_BINS,
    KEPLER_LIMIT,
    KEPLER_TOLERANCE,
    LORENZ_DT,
    LORENZ_STEPS,
    MANDELBROT_LIMIT,
    SPRING_DAMPING,
    SPRING_DT,
    SPRING_STIFFNESS,
)
from benchmarks.peers import Run

ARCH = getattr(q, os.environ.get("QUADRANTS_ARCH", "cpu"))
q.init(arch=ARCH, offline_cache=False, default_fp=q.f32, log_level=q.WARN)
Array = q.types.ndarray()


def _array(values: Any, dtype: Any) -> Any:
    made = q.ndarray(dtype, shape=values.shape)
    made.from_numpy(values)
    return made


def _run(kernel: Any, out: Any, *args: Any) -> Run:
    def call(_: Any) -> None:
        kernel(*args)
        q.sync()

    return Run(call, lambda _: (out.to_numpy(),))


@q.kernel
def lorenz_kernel(rho: Array, out: Array, steps: q.i32, h: q.f32):
    for i in range(rho.shape[0]):
        x = 1.0
        y = 0.0
        z = 0.0
        r = rho[i]
        for _ in range(steps):
            a0 = 10.0 * (y - x)
            a1 = x * (r - z) - y
            a2 = x * y - 2.6666667 * z
            u = x + 0.5 * h * a0
            v = y + 0.5 * h * a1
            w = z + 0.5 * h * a2
            b0 = 10.0 * (v - u)
            b1 = u * (r - w) - v
            b2 = u * v - 2.6666667 * w
            u = x + 0.5 * h * b0
            v = y + 0.5 * h * b1
            w = z + 0.5 * h * b2
            c0 = 10.0 * (v - u)
            c1 = u * (r - w) - v
            c2 = u * v - 2.6666667 * w
            u = x + h * c0
            v = y + h * c1
            w = z + h * c2
            d0 = 10.0 * (v - u)
            d1 = u * (r - w) - v
            d2 = u * v - 2.6666667 * w
            x = x + h / 6.0 * (a0 + 2.0 * b0 + 2.0 * c0 + d0)
            y = y + h / 6.0 * (a1 + 2.0 * b1 + 2.0 * c1 + d1)
            z = z + h / 6.0 * (a2 + 2.0 * b2 + 2.0 * c2 + d2)
        out[i] = x


def lorenz(rho: Any) -> Run:
    out = q.ndarray(q.f32, shape=rho.shape)
    return _run(lorenz_kernel, out, _array(rho, q.f32), out, LORENZ_STEPS, LORENZ_DT)


@q.kernel
def mandelbrot_kernel(cx: Array, cy: Array, out: Array, limit: q.i32):
    for a, b in q.ndrange(out.shape[0], out.shape[1]):
        u = cx[b]
        v = cy[a]
        x = 0.0
        y = 0.0
        k = 0
        while k < limit and x * x + y * y < 4.0:
            t = x * x - y * y + u
            y = 2.0 * x * y + v
            x = t
            k += 1
        out[a, b] = k


def mandelbrot(cx: Any, cy: Any) -> Run:
    out = q.ndarray(q.i32, shape=(len(cy), len(cx)))
    return _run(mandelbrot_kernel, out, _array(cx, q.f32), _array(cy, q.f32), out, MANDELBROT_LIMIT)


@q.kernel
def kepler_kernel(e: Array, mean: Array, out: Array, tolerance: q.f32, limit: q.i32):
    for i in range(e.shape[0]):
        c = e[i]
        m = mean[i]
        x = m
        f = x - c * q.sin(x) - m
        k = 0
        while k < limit and q.abs(f) > tolerance:
            x = x - f / (1.0 - c * q.cos(x))
            f = x - c * q.sin(x) - m
            k += 1
        out[i] = x


def kepler(e: Any, mean: Any) -> Run:
    out = q.ndarray(q.f32, shape=e.shape)
    return _run(kepler_kernel, out, _array(e, q.f32), _array(mean, q.f32), out, KEPLER_TOLERANCE, KEPLER_LIMIT)


@q.kernel
def ragged_kernel(ptr: Array, col: Array, w: Array, x: Array, out: Array):
    for i in range(x.shape[0]):
        acc = 0.5
        for j in range(ptr[i], ptr[i + 1]):
            acc = q.sin(acc) + w[j] * x[col[j]]
        out[i] = acc


def ragged(ptr: Any, col: Any, w: Any, x: Any) -> Run:
    out = q.ndarray(q.f32, shape=x.shape)
    return _run(
        ragged_kernel, out, _array(ptr, q.i32), _array(col, q.i32), _array(w, q.f32), _array(x, q.f32), out
    )


@q.kernel
def total_kernel(x: Array, out: Array):
    for i in range(x.shape[0]):
        out[0] += x[i]


def total(x: Any) -> Run:
    given, out = _array(x, q.f32), q.ndarray(q.f32, shape=(1,))

    def call(_: Any) -> None:
        out.fill(0)
        total_kernel(given, out)
        q.sync()

    return Run(call, lambda _: (out.to_numpy(),))


@q.kernel
def histogram_kernel(k: Array, out: Array):
    for i in range(k.shape[0]):
        out[k[i]] += 1


def histogram(k: Any) -> Run:
    given, out = _array(k, q.i32), q.ndarray(q.i32, shape=(HISTOGRAM_BINS,))

    def call(_: Any) -> None:
        out.fill(0)
        histogram_kernel(given, out)
        q.sync()

    return Run(call, lambda _: (out.to_numpy(),))


@q.kernel
def chain_kernel(a: Array, b: Array, c: Array):
    for i in range(a.shape[0]):
        b[i] = a[i] * 2.0
    for i in range(a.shape[0]):
        c[i] = b[i] + a[i]
    for i in range(a.shape[0]):
        b[i] = c[i] * c[i] + 1.0
    for i in range(a.shape[0]):
        c[i] = q.sqrt(b[i])
    for i in range(a.shape[0]):
        b[i] = c[i] + a[i] * 0.5
    for i in range(a.shape[0]):
        c[i] = b[i] * b[i]
    for i in range(a.shape[0]):
        b[i] = c[i] - a[i]
    for i in range(a.shape[0]):
        c[i] = b[i] * 0.25


def chain(x: Any) -> Run:
    between, out = q.ndarray(q.f32, shape=x.shape), q.ndarray(q.f32, shape=x.shape)
    return _run(chain_kernel, out, _array(x, q.f32), between, out)


@q.kernel
def springs_kernel(
    x: Array, v: Array, f: Array, edge: Array, rest: Array, stiffness: q.f32, dt: q.f32, damping: q.f32
):
    for i in range(x.shape[0]):
        f[i, 0] = 0.0
        f[i, 1] = 0.0
    for e in range(edge.shape[0]):
        a = edge[e, 0]
        b = edge[e, 1]
        dx = x[b, 0] - x[a, 0]
        dy = x[b, 1] - x[a, 1]
        n = q.sqrt(dx * dx + dy * dy) + 1e-9
        pull = stiffness * (n - rest[e]) / n
        f[a, 0] += pull * dx
        f[a, 1] += pull * dy
        f[b, 0] -= pull * dx
        f[b, 1] -= pull * dy
    for i in range(x.shape[0]):
        v[i, 0] = (v[i, 0] + dt * f[i, 0]) * damping
        v[i, 1] = (v[i, 1] + dt * f[i, 1]) * damping
    for i in range(x.shape[0]):
        x[i, 0] = x[i, 0] + dt * v[i, 0]
        x[i, 1] = x[i, 1] + dt * v[i, 1]


def springs(x: Any, v: Any, edge: Any, rest: Any) -> Run:
    at, speed, force = _array(x, q.f32), _array(v, q.f32), q.ndarray(q.f32, shape=x.shape)
    given, lengths = _array(edge, q.i32), _array(rest, q.f32)

    def call(_: Any) -> None:
        # in place: each call goes on from the one before
        springs_kernel(at, speed, force, given, lengths, SPRING_STIFFNESS, SPRING_DT, SPRING_DAMPING)
        q.sync()

    return Run(call, lambda _: (at.to_numpy(), speed.to_numpy()))


PROGRAMS = {f.__name__: f for f in (lorenz, mandelbrot, kepler, ragged, histogram, chain, springs)}
PROGRAMS["sum"] = total
