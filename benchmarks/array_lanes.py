"""JAX functions of one element with arrays inside, run both by `qd.vmap` and by `jax.vmap`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

if TYPE_CHECKING:
    from collections.abc import Callable


def product(a: Any, b: Any) -> Any:
    return a @ b


def cholesky_solve(a: Any, v: Any) -> Any:
    return jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), v)


def predictions(f: Any, p: Any) -> Any:
    """20 predictions of a filter's covariance."""
    return lax.fori_loop(0, 20, lambda _, p: f @ p @ f.T * 0.5 + jnp.eye(f.shape[0]), p)


def kalman(f: Any, p: Any, y: Any) -> Any:
    """30 steps of a Kalman filter that sees half of the state."""
    n = f.shape[0]
    sees = jnp.eye(n)[: n // 2]

    def step(state: Any, seen: Any) -> Any:
        x, p = state
        x, p = f @ x, f @ p @ f.T + jnp.eye(n)
        gain = jnp.linalg.solve(sees @ p @ sees.T + jnp.eye(n // 2), sees @ p).T
        return (x + gain @ (seen - sees @ x), p - gain @ sees @ p), None

    return lax.scan(step, (jnp.zeros(n), p), jnp.broadcast_to(y[: n // 2], (30, n // 2)))[0][0]


def run(test: Callable[[Any], Any], step: Callable[[Any], Any], state: Any, most: int | None) -> Any:
    """Runs steps while a test holds; with `most`, so many with selects: JAX has no reverse mode of a `while`."""
    if most is None:
        return lax.while_loop(test, step, state)
    masked = lambda s, _: (jax.tree.map(lambda new, old: jnp.where(test(s), new, old), step(s), s), None)  # noqa: E731
    return lax.scan(masked, state, None, length=most)[0]


def neural_ode(*args: Any, most: int | None = None) -> Any:
    """An ordinary differential equation whose right side is a network of two hidden layers, with steps of its own."""
    w0, b0, w1, b1, w2, b2, start, tolerance = args

    def slope(y: Any) -> Any:
        return w2 @ jnp.tanh(w1 @ jnp.tanh(w0 @ y + b0) + b1) + b2

    def step(state: Any) -> Any:
        t, y, dt = state
        dt = jnp.minimum(dt, 3.0 - t)
        k1 = slope(y)
        k2 = slope(y + dt / 2 * k1)
        k3 = slope(y + dt * 3 / 4 * k2)
        new = y + dt / 9 * (2 * k1 + 3 * k2 + 4 * k3)
        k4 = slope(new)
        error = dt * (-5 / 72 * k1 + k2 / 12 + k3 / 9 - k4 / 8) / (tolerance * (1 + jnp.abs(y)))
        size = jnp.sqrt(jnp.mean(error**2) + 1e-20)
        fits = size <= 1
        return jnp.where(fits, t + dt, t), jnp.where(fits, new, y), dt * jnp.clip(0.9 * size ** (-1 / 3), 0.2, 5.0)

    zero = 0 * start[0]
    return run(lambda state: state[0] < 3.0, step, (zero, start, zero + 0.1), most)[1]


def network_in_loop(w: Any, x: Any, limit: Any, *, most: int | None = None) -> Any:
    """Two layers as often as a lane's limit says."""

    def step(state: Any) -> Any:
        return jnp.tanh(w @ jnp.tanh(w @ state[0])), state[1] + 1

    return run(lambda state: state[1] < limit, step, (x, 0 * limit), most)[0]
