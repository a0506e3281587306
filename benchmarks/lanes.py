"""Scalar JAX functions of one element, run both by `qd.vmap` and by `jax.vmap`."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from benchmarks.constants import (
    KEPLER_LIMIT,
    KEPLER_TOLERANCE,
    LORENZ_DT,
    LORENZ_STEPS,
    MANDELBROT_LIMIT,
    NEIGHBOURS,
    OSCILLATOR_DT,
)


def lorenz(rho: Any) -> Any:
    """x at the end of the Lorenz system from (1, 0, 0), by classical Runge-Kutta."""

    def slope(x: Any, y: Any, z: Any) -> tuple[Any, Any, Any]:
        return 10.0 * (y - x), x * (rho - z) - y, x * y - (8 / 3) * z

    def along(state: Any, h: float, k: Any) -> tuple[Any, ...]:
        return tuple(s + h * d for s, d in zip(state, k, strict=True))

    def step(_: Any, state: Any) -> tuple[Any, ...]:
        h = LORENZ_DT
        k1 = slope(*state)
        k2 = slope(*along(state, 0.5 * h, k1))
        k3 = slope(*along(state, 0.5 * h, k2))
        k4 = slope(*along(state, h, k3))
        return tuple(
            s + (h / 6) * (a + 2.0 * b + 2.0 * c + d) for s, a, b, c, d in zip(state, k1, k2, k3, k4, strict=True)
        )

    zero = jnp.zeros_like(rho)
    return lax.fori_loop(0, LORENZ_STEPS, step, (zero + 1.0, zero, zero))[0]


def stacked_lorenz_step(s: Any, rho: Any, h: float) -> Any:
    """A step of a state that is one small array."""

    def slope(s: Any) -> Any:
        return jnp.stack([10.0 * (s[1] - s[0]), s[0] * (rho - s[2]) - s[1], s[0] * s[1] - (8 / 3) * s[2]])

    k1 = slope(s)
    k2 = slope(s + 0.5 * h * k1)
    k3 = slope(s + 0.5 * h * k2)
    k4 = slope(s + h * k3)
    return s + (h / 6) * (k1 + 2.0 * k2 + 2.0 * k3 + k4)


def lorenz_stacked(rho: Any) -> Any:
    """The same with the state as one small array, as it is often written."""
    start = jnp.array([1.0, 0.0, 0.0], rho.dtype)
    return lax.fori_loop(0, LORENZ_STEPS, lambda _, s: stacked_lorenz_step(s, rho, LORENZ_DT), start)[0]


def mandelbrot(cx: Any, cy: Any) -> Any:
    """Iterations of z^2 + c that stay within the circle of radius 2."""

    def inside(state: Any) -> Any:
        x, y, k = state
        return (k < MANDELBROT_LIMIT) & (x * x + y * y < 4.0)

    def step(state: Any) -> Any:
        x, y, k = state
        return x * x - y * y + cx, 2.0 * x * y + cy, k + 1

    zero = jnp.zeros_like(cx)
    return lax.while_loop(inside, step, (zero, zero, jnp.int32(0)))[2]


def kepler(e: Any, mean: Any) -> Any:
    """The solution E of E - e sin E = mean by Newton's method."""

    def residual(x: Any) -> Any:
        return x - e * jnp.sin(x) - mean

    def unsolved(state: Any) -> Any:
        _, f, k = state
        return (jnp.abs(f) > KEPLER_TOLERANCE) & (k < KEPLER_LIMIT)

    def step(state: Any) -> Any:
        x, f, k = state
        x = x - f / (1.0 - e * jnp.cos(x))
        return x, residual(x), k + 1

    return lax.while_loop(unsolved, step, (mean, residual(mean), jnp.int32(0)))[0]


def oscillator(start: Any, trips: Any) -> Any:
    """x of van der Pol's oscillator from (start, 0) after some steps of classical Runge-Kutta."""

    def slope(x: Any, v: Any) -> tuple[Any, Any]:
        return v, (1.0 - x * x) * v - x

    def step(state: Any) -> Any:
        x, v, k = state
        h = OSCILLATOR_DT
        a, p = slope(x, v)
        b, q = slope(x + 0.5 * h * a, v + 0.5 * h * p)
        c, r = slope(x + 0.5 * h * b, v + 0.5 * h * q)
        d, s = slope(x + h * c, v + h * r)
        return x + h / 6 * (a + 2.0 * b + 2.0 * c + d), v + h / 6 * (p + 2.0 * q + 2.0 * r + s), k + 1

    return lax.while_loop(lambda state: state[2] < trips, step, (start, jnp.zeros_like(start), jnp.int32(0)))[0]


def ragged_row(first: Any, last: Any, col: Any, w: Any, x: Any) -> Any:
    """acc = sin(acc) + w[j] x[col[j]] over the entries of one row."""

    def more(state: Any) -> Any:
        return state[0] < last

    def step(state: Any) -> Any:
        j, acc = state
        return j + 1, jnp.sin(acc) + w[j] * x[col[j]]

    return lax.while_loop(more, step, (first, jnp.float32(0.5)))[1]


def nearest(query: Any, points: Any) -> tuple[Any, Any]:
    """Squared distances and indices of the nearest points, nearest first."""
    infinite = jnp.full((NEIGHBOURS,), jnp.inf, jnp.float32)
    nobody = jnp.full((NEIGHBOURS,), -1, jnp.int32)

    def visit(j: Any, best: Any) -> Any:
        dx, dy, dz = points[j, 0] - query[0], points[j, 1] - query[1], points[j, 2] - query[2]
        d = dx * dx + dy * dy + dz * dz

        def insert(best: Any) -> Any:
            distances, indices = best
            later = d < distances  # places that the new point pushes back by one
            before = jnp.concatenate([jnp.zeros((1,), bool), later[:-1]])
            pushed = jnp.concatenate([distances[:1], distances[:-1]])
            pushed_indices = jnp.concatenate([indices[:1], indices[:-1]])
            return (
                jnp.where(before, pushed, jnp.where(later, d, distances)),
                jnp.where(before, pushed_indices, jnp.where(later, j, indices)),
            )

        return lax.cond(d < best[0][-1], insert, lambda best: best, best)

    return lax.fori_loop(0, points.shape[0], visit, (infinite, nobody))
