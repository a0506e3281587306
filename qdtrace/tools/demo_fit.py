"""The fit of the demo: gradient descent of many starting points at once, and standard errors of the best."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from qdtrace.tools.demo_model import misfit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def one(logs: Any, log_counts: Any) -> tuple[Any, Any]:
    """Returns misfit and number of steps of one model; logarithms keep its six parameters above zero."""
    return misfit(jnp.exp(logs), log_counts)


@qd.jit
def misfits(logs: Any, log_counts: Any) -> tuple[Any, Any]:
    """Returns misfit f32[n] and number of steps i32[n] of every row of `logs` f32[n,6]: one thread per model."""
    fits, steps = qd.empty(logs.shape[0], logs.dtype), qd.empty(logs.shape[0], jnp.int32)
    for i in qd.range(logs.shape[0]):
        fits[i], steps[i] = one(logs[i], log_counts)
    return fits, steps


def gradients(logs: Any, log_counts: Any) -> tuple[Any, tuple[Any, Any]]:
    """Returns the gradient of each model's misfit, f32[n,6], and the results of `misfits`."""

    def total(logs: Any) -> tuple[Any, tuple[Any, Any]]:
        fits, steps = misfits(logs, log_counts)
        return jnp.sum(fits), (fits, steps)

    return jax.grad(total, has_aux=True)(logs)


def descent(iterations: int) -> tuple[Callable[[Any], Any], Any]:
    """Returns Adam for all starting points at once, as two functions.

    `start(logs)` returns its state; `improve(logs, memory, log_counts)`, under `jax.jit`, returns new logs and state,
    and the misfits and numbers of steps before. Its memory is short (b2 = 0.9), as gradients fall by orders of
    magnitude; its step falls to zero along a cosine.
    """
    import optax  # only here: an extra

    optimiser = optax.adam(optax.cosine_decay_schedule(0.1, iterations), b1=0.9, b2=0.9)

    @jax.jit
    def improve(logs: Any, memory: Any, log_counts: Any) -> tuple[Any, Any, Any, Any]:
        gradient, (fits, steps) = gradients(logs, log_counts)
        # a model that overflows before the last year has no gradient: it stays
        gradient = jnp.where(jnp.isfinite(gradient), gradient, 0.0)
        change, memory = optimiser.update(gradient, memory)
        return logs + change, memory, fits, steps

    return optimiser.init, improve


def covariance(logs: Any, log_counts: Any) -> NDArray[Any]:
    """Returns the covariance of the parameters' logarithms at the best fit, by the inverse of the misfit's Hessian.

    It assumes normal errors of the logarithms of the counts, whose variance is the misfit over its degrees of freedom.
    It is NaN if the misfit has no minimum there, as after too short a descent.
    """

    def value(logs: Any) -> Any:
        return misfits(logs[None], log_counts)[0][0]

    smallest, hessian = value(logs), jax.hessian(value)(logs)
    variance = float(smallest) / (log_counts.size - logs.size)
    bend = np.asarray(hessian, np.float64)
    bend = 0.5 * (bend + bend.T)  # symmetric but for roundings
    if np.linalg.eigvalsh(bend)[0] <= 0.0:
        return np.full_like(bend, np.nan)
    return 2.0 * variance * np.linalg.inv(bend)
