"""The adjoint of the Lorenz loop written by hand in qdtrace's API: what a generated one is measured by.

A stack is a private array. A forward loop keeps every K-th state; the loop back takes K steps as one piece, run again
and reversed in straight lines (`jax.vjp` of K steps). The K that is fastest on this machine counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks.gradients.arithmetic import lorenz_steps
from benchmarks.gradients.fastest import fastest
from benchmarks.peers import Run

if TYPE_CHECKING:
    from collections.abc import Callable

PIECES = (1, 2, 4, 5, 10)


def lorenz_adjoint(steps: int, piece: int) -> Callable[[Any], Any]:
    """Returns a function (n,) to (n,): derivatives by `rho` of the sum of x, y and z after `steps` steps.

    `piece` divides `steps`.
    """
    advance, pieces = lorenz_steps(piece), steps // piece

    @qd.jit
    def adjoint(rho: Any) -> Any:
        out = qd.empty(rho.shape, rho.dtype)
        for i in qd.range(rho.shape[0]):
            state = [qd.local(value) for value in (1.0, 0.0, 0.0)]
            parameter = rho[i]
            stack = qd.local(jnp.zeros((pieces, 3)))
            for t in qd.range(pieces):
                x, y, z = (cell.value for cell in state)
                for k, value in enumerate((x, y, z)):
                    stack[t, k] = value
                for cell, value in zip(state, advance((x, y, z), parameter), strict=True):
                    cell.value = value
            bars = [qd.local(1.0) for _ in range(3)]
            total = qd.local(0.0)
            for t in qd.range(pieces - 1, -1, -1):
                _, back = jax.vjp(advance, (stack[t, 0], stack[t, 1], stack[t, 2]), parameter)
                of_state, of_parameter = back(tuple(bar.value for bar in bars))
                for bar, value in zip(bars, of_state, strict=True):
                    bar.value = value
                total.value = total.value + of_parameter
            out[i] = total.value
        return out

    return adjoint


def lorenz(steps: int) -> Callable[..., Run]:
    """The fastest of them."""

    def make(rho: Any) -> Run:
        given = jnp.asarray(rho)

        def variant(piece: int) -> Callable[[], Any]:
            adjoint = lorenz_adjoint(steps, piece)
            return lambda: jax.block_until_ready(adjoint(given))

        name, call = fastest({f"K = {k}": variant(k) for k in PIECES})
        return Run(lambda _: call(), lambda out: (np.asarray(out),), about=lambda: name)

    return make
