"""A weakly compressible fluid by the material point method in two dimensions: the program whose compile time counts.

Particles carry position, velocity, an affine velocity matrix and a volume ratio. A step scatters them to a grid with
quadratic B-splines, updates the grid, and gathers back (Hu et al. 2018, moving least squares MPM).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

GRID, DT = 128, 2e-4
DX = 1.0 / GRID
VOLUME = (0.5 * DX) ** 2
MASS, STIFFNESS, GRAVITY, BORDER = VOLUME * 1.0, 400.0, 9.8, 3


def _weights(position: Any) -> tuple[Any, Any, list[Any]]:
    """The lowest node of the 3 x 3 neighbourhood, the particle's place in it, and the spline's weights."""
    scaled = position / DX
    base = (scaled - 0.5).astype(jnp.int32)
    at = scaled - base.astype(jnp.float32)
    return base, at, [0.5 * (1.5 - at) ** 2, 0.75 - (at - 1.0) ** 2, 0.5 * (at - 0.5) ** 2]


def substep(x: Any, v: Any, affine: Any, ratio: Any) -> tuple[Any, Any, Any, Any]:
    """One step of all particles."""
    momentum = qd.zeros((GRID, GRID, 2), jnp.float32)
    mass = qd.zeros((GRID, GRID), jnp.float32)
    for p in qd.range(x.shape[0]):
        base, at, weights = _weights(x[p])
        stress = -DT * 4.0 * STIFFNESS * VOLUME * (ratio[p] - 1.0) / DX**2
        matrix = jnp.array([[stress, 0.0], [0.0, stress]]) + MASS * affine[p]
        for i in range(3):
            for j in range(3):
                offset = (jnp.array([i, j], jnp.float32) - at) * DX
                weight = weights[i][0] * weights[j][1]
                node = (base[0] + i, base[1] + j)
                momentum[node] += weight * (MASS * v[p] + matrix @ offset)
                mass[node] += weight * MASS
    for i, j in qd.ndrange(GRID, GRID):
        with qd.when(mass[i, j] > 0):
            speed = momentum[i, j] / mass[i, j] - jnp.array([0.0, DT * GRAVITY])
            low = jnp.array([i < BORDER, j < BORDER]) & (speed < 0)
            high = jnp.array([i > GRID - BORDER, j > GRID - BORDER]) & (speed > 0)
            momentum[i, j] = jnp.where(low | high, 0.0, speed)
    for p in qd.range(x.shape[0]):
        base, at, weights = _weights(x[p])
        speed = jnp.zeros(2)
        gradient = jnp.zeros((2, 2))
        for i in range(3):
            for j in range(3):
                offset = (jnp.array([i, j], jnp.float32) - at) * DX
                weighted = weights[i][0] * weights[j][1] * momentum[base[0] + i, base[1] + j]
                speed = speed + weighted
                gradient = gradient + 4.0 * jnp.outer(weighted, offset) / DX**2
        v[p] = speed
        affine[p] = gradient
        x[p] = x[p] + DT * speed
        ratio[p] = ratio[p] * (1.0 + DT * jnp.trace(gradient))
    return x, v, affine, ratio


def particles(count: int = 8192, seed: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
    """A block of water at rest: position, velocity, affine matrix, volume ratio."""
    rng = np.random.default_rng(seed)
    x = (0.2 + 0.4 * rng.uniform(size=(count, 2))).astype(np.float32)
    return x, np.zeros_like(x), np.zeros((count, 2, 2), np.float32), np.ones(count, np.float32)


def substep_reference(
    x: Any, v: Any, affine: Any, ratio: Any
) -> tuple[np.ndarray[Any, Any], ...]:
    """The same step in NumPy, in the arguments' precision."""
    scaled = x / DX
    base = (scaled - 0.5).astype(np.int32)
    at = scaled - base
    weights = [0.5 * (1.5 - at) ** 2, 0.75 - (at - 1) ** 2, 0.5 * (at - 0.5) ** 2]
    momentum, mass = np.zeros((GRID, GRID, 2), x.dtype), np.zeros((GRID, GRID), x.dtype)
    stress = -DT * 4 * STIFFNESS * VOLUME * (ratio - 1) / DX**2
    matrix = stress[:, None, None] * np.eye(2) + MASS * affine
    neighbours = [(i, j) for i in range(3) for j in range(3)]
    for i, j in neighbours:
        offset = (np.array([i, j]) - at) * DX
        weight = weights[i][:, 0] * weights[j][:, 1]
        moved = MASS * v + np.einsum("pab,pb->pa", matrix, offset)
        np.add.at(momentum, (base[:, 0] + i, base[:, 1] + j), weight[:, None] * moved)
        np.add.at(mass, (base[:, 0] + i, base[:, 1] + j), weight * MASS)
    speed = momentum / np.where(mass > 0, mass, 1)[..., None] - np.array([0, DT * GRAVITY])
    at_node = np.moveaxis(np.mgrid[:GRID, :GRID], 0, -1)
    stopped = ((at_node < BORDER) & (speed < 0)) | ((at_node > GRID - BORDER) & (speed > 0))
    speed = np.where((mass > 0)[..., None], np.where(stopped, 0, speed), momentum)
    new_v, gradient = np.zeros_like(v), np.zeros_like(affine)
    for i, j in neighbours:
        offset = (np.array([i, j]) - at) * DX
        weighted = (weights[i][:, 0] * weights[j][:, 1])[:, None] * speed[base[:, 0] + i, base[:, 1] + j]
        new_v += weighted
        gradient += 4 * np.einsum("pa,pb->pab", weighted, offset) / DX**2
    return x + DT * new_v, new_v, gradient, ratio * (1 + DT * np.trace(gradient, axis1=1, axis2=2))
