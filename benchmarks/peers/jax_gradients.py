"""`jax.vjp` of the same functions on arrays: loops are `lax.scan`, which has reverse mode; rows are masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks.gradients.arithmetic import LORENZ_STEP, lorenz_step
from benchmarks.gradients.case import Case, gradients
from benchmarks.lanes import stacked_lorenz_step
from benchmarks.peers import jax_peer

if TYPE_CHECKING:
    from benchmarks.gradients.case import Cases

LORENZ_STEPS = 100


def lorenz(rho: Any) -> Case:
    def ends(rho: Any) -> Any:
        zero = jnp.zeros_like(rho)
        last, _ = lax.scan(lambda s, _: (lorenz_step(s, rho), None), (zero + 1.0, zero, zero), length=LORENZ_STEPS)
        return jnp.stack(last, 1)

    return Case(ends, (rho,))


def lorenz_stacked(rho: Any) -> Case:
    """The same with the state as one small array, as it is often written, and `jax.vmap` over lanes."""

    def end(rho: Any) -> Any:
        start = jnp.array([1.0, 0.0, 0.0], rho.dtype)
        return lax.scan(lambda s, _: (stacked_lorenz_step(s, rho, LORENZ_STEP), None), start, length=LORENZ_STEPS)[0]

    return Case(jax.vmap(end), (rho,))


def ragged(ptr: Any, col: Any, w: Any, x: Any) -> Case:
    """All rows step by step up to the longest; rows that have ended keep their value."""
    longest = int(np.max(np.diff(ptr)))

    def rows(w: Any, x: Any) -> Any:
        def step(acc: Any, k: Any) -> Any:
            j = ptr[:-1] + k
            on = j < ptr[1:]
            j = jnp.where(on, j, 0)
            return jnp.where(on, jnp.sin(acc) + w[j] * x[jnp.asarray(col)[j]], acc), None

        return lax.scan(step, jnp.full(x.shape, 0.5, x.dtype), jnp.arange(longest))[0]

    return Case(rows, (w, x))


def chain(x: Any) -> Case:
    return Case(jax_peer.eight_operations, (x,))


CASES: Cases = {"gradient_lorenz_small": lorenz, "gradient_ragged": ragged, "gradient_chain": chain}
GRADIENTS = gradients(CASES)
