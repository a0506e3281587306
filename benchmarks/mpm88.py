"""A weakly compressible fluid by the material point method in two dimensions: the program whose compile time counts.

Particles carry position, velocity, an affine velocity matrix and a volume ratio. A step scatters them to a grid with
quadratic B-splines, updates the grid, and gathers back (Hu et al. 2018, moving least squares MPM).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

STIFFNESS, GRAVITY, BORDER = 400.0, 9.8, 3


@dataclass(frozen=True)
class Fluid:
    """Water on a grid of `grid` x `grid` nodes over the unit square; a step is `dt` seconds."""

    grid: int = 128
    dt: float = 2e-4

    @property
    def dx(self) -> float:
        """The distance of nodes."""
        return 1.0 / self.grid

    @property
    def volume(self) -> float:
        """Volume of a particle at rest."""
        return (0.5 * self.dx) ** 2

    @property
    def mass(self) -> float:
        """Mass of a particle; the density is 1."""
        return self.volume

    def _weights(self, position: Any) -> tuple[Any, Any, list[Any]]:
        """The lowest node of the 3 x 3 neighbourhood, the particle's place in it, and the spline's weights."""
        scaled = position / self.dx
        base = (scaled - 0.5).astype(jnp.int32)
        at = scaled - base.astype(jnp.float32)
        return base, at, [0.5 * (1.5 - at) ** 2, 0.75 - (at - 1.0) ** 2, 0.5 * (at - 0.5) ** 2]

    def substep(self, x: Any, v: Any, affine: Any, ratio: Any) -> tuple[Any, Any, Any, Any]:
        """One step of all particles."""
        grid, dt, dx, mass_of_one = self.grid, self.dt, self.dx, self.mass
        momentum = qd.zeros((grid, grid, 2), jnp.float32)
        mass = qd.zeros((grid, grid), jnp.float32)
        for p in qd.range(x.shape[0]):
            base, at, weights = self._weights(x[p])
            stress = -dt * 4.0 * STIFFNESS * self.volume * (ratio[p] - 1.0) / dx**2
            matrix = jnp.array([[stress, 0.0], [0.0, stress]]) + mass_of_one * affine[p]
            for i in range(3):
                for j in range(3):
                    offset = (jnp.array([i, j], jnp.float32) - at) * dx
                    weight = weights[i][0] * weights[j][1]
                    node = (base[0] + i, base[1] + j)
                    momentum[node] += weight * (mass_of_one * v[p] + matrix @ offset)
                    mass[node] += weight * mass_of_one
        for i, j in qd.ndrange(grid, grid):
            with qd.when(mass[i, j] > 0):
                speed = momentum[i, j] / mass[i, j] - jnp.array([0.0, dt * GRAVITY])
                low = jnp.array([i < BORDER, j < BORDER]) & (speed < 0)
                high = jnp.array([i > grid - BORDER, j > grid - BORDER]) & (speed > 0)
                momentum[i, j] = jnp.where(low | high, 0.0, speed)
        for p in qd.range(x.shape[0]):
            base, at, weights = self._weights(x[p])
            speed = jnp.zeros(2)
            gradient = jnp.zeros((2, 2))
            for i in range(3):
                for j in range(3):
                    offset = (jnp.array([i, j], jnp.float32) - at) * dx
                    weighted = weights[i][0] * weights[j][1] * momentum[base[0] + i, base[1] + j]
                    speed = speed + weighted
                    gradient = gradient + 4.0 * jnp.outer(weighted, offset) / dx**2
            v[p] = speed
            affine[p] = gradient
            x[p] = x[p] + dt * speed
            ratio[p] = ratio[p] * (1.0 + dt * jnp.trace(gradient))
        return x, v, affine, ratio

    def reference(self, x: Any, v: Any, affine: Any, ratio: Any) -> tuple[np.ndarray[Any, Any], ...]:
        """The same step in NumPy, for arguments in double precision."""
        grid, dt, dx, mass_of_one = self.grid, self.dt, self.dx, self.mass
        scaled = x / dx
        base = (scaled - 0.5).astype(np.int32)
        at = scaled - base
        weights = [0.5 * (1.5 - at) ** 2, 0.75 - (at - 1) ** 2, 0.5 * (at - 0.5) ** 2]
        momentum, mass = np.zeros((2, grid * grid)), np.zeros(grid * grid)
        stress = -dt * 4 * STIFFNESS * self.volume * (ratio - 1) / dx**2
        matrix = stress[:, None, None] * np.eye(2) + mass_of_one * affine
        neighbours = [(i, j) for i in range(3) for j in range(3)]
        for i, j in neighbours:
            offset = (np.array([i, j]) - at) * dx
            weight = weights[i][:, 0] * weights[j][:, 1]
            moved = mass_of_one * v + np.einsum("pab,pb->pa", matrix, offset)
            node = (base[:, 0] + i) * grid + base[:, 1] + j
            mass += np.bincount(node, weight * mass_of_one, grid * grid)
            for a in range(2):
                momentum[a] += np.bincount(node, weight * moved[:, a], grid * grid)
        momentum, mass = momentum.T.reshape(grid, grid, 2), mass.reshape(grid, grid)
        speed = momentum / np.where(mass > 0, mass, 1)[..., None] - np.array([0, dt * GRAVITY])
        at_node = np.moveaxis(np.mgrid[:grid, :grid], 0, -1)
        stopped = ((at_node < BORDER) & (speed < 0)) | ((at_node > grid - BORDER) & (speed > 0))
        speed = np.where((mass > 0)[..., None], np.where(stopped, 0, speed), momentum)
        new_v, gradient = np.zeros_like(v), np.zeros_like(affine)
        for i, j in neighbours:
            offset = (np.array([i, j]) - at) * dx
            weighted = (weights[i][:, 0] * weights[j][:, 1])[:, None] * speed[base[:, 0] + i, base[:, 1] + j]
            new_v += weighted
            gradient += 4 * np.einsum("pa,pb->pab", weighted, offset) / dx**2
        return x + dt * new_v, new_v, gradient, ratio * (1 + dt * np.trace(gradient, axis1=1, axis2=2))


FLUID = Fluid()
substep, substep_reference = FLUID.substep, FLUID.reference


def particles(count: int = 8192, seed: int = 0) -> tuple[np.ndarray[Any, Any], ...]:
    """A block of water at rest: position, velocity, affine matrix, volume ratio."""
    rng = np.random.default_rng(seed)
    x = (0.2 + 0.4 * rng.uniform(size=(count, 2))).astype(np.float32)
    return x, np.zeros_like(x), np.zeros((count, 2, 2), np.float32), np.ones(count, np.float32)
