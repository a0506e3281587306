"""JAX functions of one element with arrays inside, run both by `qd.vmap` and by `jax.vmap`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


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
