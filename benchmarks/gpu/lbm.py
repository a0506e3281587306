"""A fluid by the lattice Boltzmann method: 19 velocities in three dimensions, one relaxation time, a periodic box.

Relaxation is that of Bhatnagar, Gross and Krook. Populations lie one velocity behind the other; a step pulls what
arrives at a cell and relaxes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd
from benchmarks.programs import close

if TYPE_CHECKING:
    from benchmarks.programs import Arrays, Outputs

VELOCITIES = [
    (x, y, z) for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1) if abs(x) + abs(y) + abs(z) < 3
]
WEIGHTS = [{0: 1 / 3, 1: 1 / 18, 2: 1 / 36}[abs(x) + abs(y) + abs(z)] for x, y, z in VELOCITIES]
OMEGA = 1.0
BYTES = 2 * 4 * len(VELOCITIES)
"""Bytes that a step must move for each cell."""


def relaxed(arrived: list[Any], omega: Any) -> list[Any]:
    """Returns the populations of a cell after relaxation, for numbers of any kind."""
    density = sum(arrived)
    flow = [sum(c[k] * f for c, f in zip(VELOCITIES, arrived, strict=True) if c[k]) / density for k in range(3)]
    squared = 1.5 * sum(u * u for u in flow)
    after: list[Any] = []
    for c, weight, f in zip(VELOCITIES, WEIGHTS, arrived, strict=True):
        along = sum(ck * u for ck, u in zip(c, flow, strict=True) if ck)
        rest = weight * density * (1.0 + along * (3.0 + 4.5 * along) - squared)
        after.append(f - omega * (f - rest))
    return after


@qd.jit
def step(f: Any, omega: Any) -> Any:
    """One step: (19, nz, ny, nx) to the same."""
    _, nz, ny, nx = f.shape
    out = qd.empty(f.shape, f.dtype)
    for z, y, x in qd.ndrange(nz, ny, nx):
        # where what moves by -1, 0 and 1 comes from
        xs, ys, zs = (
            {0: at, 1: jnp.where(at == 0, n - 1, at - 1), -1: jnp.where(at == n - 1, 0, at + 1)}
            for at, n in ((x, nx), (y, ny), (z, nz))
        )
        arrived = [f[k, zs[c[2]], ys[c[1]], xs[c[0]]] for k, c in enumerate(VELOCITIES)]
        for k, value in enumerate(relaxed(arrived, omega)):
            out[k, z, y, x] = value
    return out


def inputs(n: int) -> dict[str, Any]:
    """n^3 cells near equilibrium."""
    noise = np.random.default_rng(0).uniform(0.95, 1.05, (len(VELOCITIES), n, n, n)).astype(np.float32)
    return {"f": noise * np.array(WEIGHTS, np.float32)[:, None, None, None], "omega": np.float32(OMEGA)}


def check(given: Arrays, out: Outputs) -> str:
    """Some cells in double precision, corners among them."""
    f, rng = given["f"], np.random.default_rng(1)
    size = np.array(f.shape[:0:-1])
    corners = np.array(list(np.ndindex(2, 2, 2))) * (size - 1)
    cells = np.concatenate([rng.integers(0, size, (1000, 3)), corners])
    arrived = []
    for k, c in enumerate(VELOCITIES):
        x, y, z = ((cells - np.array(c)) % size).T
        arrived.append(f[k, z, y, x].astype(np.float64))
    x, y, z = cells.T
    want = np.stack(relaxed(arrived, float(given["omega"])))
    # populations of about 0.03, from sums of 19
    return close(out[0][:, z, y, x], want, 1e-5, 1e-7)
