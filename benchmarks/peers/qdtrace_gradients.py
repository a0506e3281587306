"""Gradients by qdtrace, their primals, and adjoints written by hand in its API."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import qdtrace as qd
from benchmarks import lanes, mpm88
from benchmarks.gradients import by_hand, links
from benchmarks.gradients.arithmetic import NEWTON_TOLERANCE, lorenz_step, newton_step
from benchmarks.gradients.case import Case, gradients, primals
from benchmarks.peers.qdtrace_peer import eight_loops, ragged_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gradients.case import Cases


@functools.cache
def lorenz_ends(steps: int) -> Any:
    """States after that many steps from (1, 0, 0), for each of the parameters `rho`: (n,) to (n, 3)."""

    @qd.jit
    def run(rho: Any) -> Any:
        out = qd.empty((rho.shape[0], 3), rho.dtype)
        for i in qd.range(rho.shape[0]):
            state = [qd.local(value) for value in (1.0, 0.0, 0.0)]
            parameter = rho[i]
            for _ in qd.range(steps):
                x, y, z = (cell.value for cell in state)
                for cell, value in zip(state, lorenz_step((x, y, z), parameter), strict=True):
                    cell.value = value
            for k in range(3):
                out[i, k] = state[k].value
        return out

    return run


@qd.jit
def lorenz_until(rho: Any, end: Any) -> Any:
    """The same until the number of steps is `end`, one for all or one a lane: nobody knows how often the loop runs."""
    out = qd.empty((rho.shape[0], 3), rho.dtype)
    for i in qd.range(rho.shape[0]):
        state = [qd.local(value) for value in (1.0, 0.0, 0.0)]
        done = qd.local(0.0)
        parameter = rho[i]
        last = end[i] if end.ndim else end
        for _ in qd.while_(lambda: done.value < last):  # noqa: B023
            x, y, z = (cell.value for cell in state)
            for cell, value in zip(state, lorenz_step((x, y, z), parameter), strict=True):
                cell.value = value
            done.value = done.value + 1.0
        for k in range(3):
            out[i, k] = state[k].value
    return out


@qd.vmap
def square_roots(a: Any) -> Any:
    """Newton's method until the residual is small."""
    return jax.lax.while_loop(
        lambda s: jnp.abs(s * s - a) > NEWTON_TOLERANCE * a, lambda s: newton_step(s, a), 0.5 * (1.0 + a)
    )


@qd.jit
def csr_product(ptr: Any, col: Any, w: Any, x: Any) -> Any:
    """A sparse matrix times a vector."""
    y = qd.empty((ptr.shape[0] - 1,), x.dtype)
    for i in qd.range(y.shape[0]):
        total = qd.local(0.0)
        for j in qd.range(ptr[i], ptr[i + 1]):
            total.value = total.value + w[j] * x[col[j]]
        y[i] = total.value
    return y


@qd.jit
def robot_walks(torques: Any) -> Any:
    """Returns the final position of each robot's base: torques (robots, steps, links) to places (robots, 3)."""
    out = qd.empty((torques.shape[0], 3), torques.dtype)
    for i in qd.range(torques.shape[0]):
        state = [qd.local(value) for value in vars(links.start(jnp)).values()]
        for t in qd.range(torques.shape[1]):
            moved = links.step(jnp, links.Robot(*(cell.value for cell in state)), torques[i, t])
            for cell, value in zip(state, vars(moved).values(), strict=True):
                cell.value = value
        out[i] = state[0].value
    return out


def lorenz(steps: int) -> Callable[..., Case]:
    """The case of a known number of steps."""
    return lambda rho: Case(lorenz_ends(steps), (rho,))


def lorenz_while(rho: Any, end: Any) -> Case:
    return Case(lambda end, rho: lorenz_until(rho, end), (rho,), fixed=(end,))


def newton(a: Any) -> Case:
    return Case(square_roots, (a,))


def kepler(e: Any, mean: Any) -> Case:
    return Case(qd.vmap(lanes.kepler), (e, mean))


def ragged(ptr: Any, col: Any, w: Any, x: Any) -> Case:
    return Case(ragged_rows, (w, x), fixed=(ptr, col))


def csr(ptr: Any, col: Any, w: Any, x: Any, bar: Any) -> Case:
    return Case(csr_product, (w, x), bar, (ptr, col))


def mpm(x: Any, v: Any, affine: Any, ratio: Any, **bars: Any) -> Case:
    return Case(qd.jit(mpm88.substep), (x, v, affine, ratio), tuple(bars.values()))


def robots(torques: Any) -> Case:
    return Case(robot_walks, (torques,))


def chain(x: Any) -> Case:
    return Case(eight_loops, (x,))


CASES: Cases = {
    "gradient_lorenz": lorenz(100),
    "gradient_lorenz_1000": lorenz(1000),
    "gradient_lorenz_small": lorenz(100),
    "gradient_while_1000": lorenz_while,
    "gradient_while_10000": lorenz_while,
    "gradient_newton": newton,
    "gradient_kepler": kepler,
    "gradient_ragged": ragged,
    "gradient_csr": csr,
    "gradient_mpm": mpm,
    "gradient_chain": chain,
    "gradient_links": robots,
}
PRIMALS, GRADIENTS = primals(CASES), gradients(CASES)
BY_HAND = {"gradient_lorenz": by_hand.lorenz(100), "gradient_lorenz_1000": by_hand.lorenz(1000)}
