"""An elastic block in two dimensions, thrown into a box: the material point method (moving least squares).

Particles carry position, velocity, its gradient and the deformation; a grid carries momentum for one step. The stress
is that of the fixed corotated model. Loss: the square of the distance from the centre at the end to a target.
"""

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

GRID, DT, WALL = 12, 4e-3, 2
DX = 1 / GRID
TARGET = np.array([0.6, 0.45])
SIDE = np.linspace(0.3, 0.5, 5)
POINTS = np.stack(np.meshgrid(SIDE, SIDE, indexing="ij"), -1).reshape(-1, 2)
VOLUME = (SIDE[1] - SIDE[0]) ** 2


def near(x):
    """The first of the three grid points around a particle in each axis, and the weights of all three."""
    at = (x / DX - 0.5).astype(jnp.int32)
    from_it = x / DX - at
    return at, from_it, jnp.stack([0.5 * (1.5 - from_it) ** 2, 0.75 - (from_it - 1) ** 2, 0.5 * (from_it - 0.5) ** 2])


def stress(f, mu, lam):
    """The Kirchhoff stress of a deformation."""
    turn = jnp.array([[f[0, 0] + f[1, 1], f[0, 1] - f[1, 0]], [f[1, 0] - f[0, 1], f[0, 0] + f[1, 1]]])
    rotation = turn / jnp.sqrt(turn[0, 0] ** 2 + turn[1, 0] ** 2)
    volume = jnp.linalg.det(f)
    return 2 * mu * (f - rotation) @ f.T + lam * volume * (volume - 1) * jnp.eye(2)


@qd.jit
def centre(velocity, young, steps):
    """Where the centre of the block is after `steps` steps."""
    n = len(POINTS)
    mu, lam = young / (2 * 1.2), young * 0.2 / (1.2 * 0.6)
    x, v = qd.copy(jnp.asarray(POINTS)), qd.zeros((n, 2))
    c, f = qd.zeros((n, 2, 2)), qd.zeros((n, 2, 2))
    momentum, mass, k = qd.zeros((GRID, GRID, 2)), qd.zeros((GRID, GRID)), qd.zeros((), jnp.int32)
    for p in qd.range(n):
        v[p] = velocity[...]
        f[p] = jnp.eye(2)
    for _ in qd.while_(lambda: k[()] < steps):
        for i, j in qd.ndrange(GRID, GRID):
            mass[i, j] = 0.0
            momentum[i, j] = jnp.zeros(2)
        for p in qd.range(n):
            at, from_it, w = near(x[p])
            f[p] = (jnp.eye(2) + DT * c[p]) @ f[p]
            affine = VOLUME * c[p] - 4 * DT * VOLUME / DX**2 * stress(f[p], mu, lam)
            for i, j in qd.ndrange(3, 3):
                weight = w[i, 0] * w[j, 1]
                away = (jnp.array([i, j]) - from_it) * DX
                momentum[at[0] + i, at[1] + j] += weight * (VOLUME * v[p] + affine @ away)
                mass[at[0] + i, at[1] + j] += weight * VOLUME
        for i, j in qd.ndrange(GRID, GRID):
            with qd.when(mass[i, j] > 0):
                speed = qd.local(momentum[i, j] / mass[i, j] + DT * jnp.array([0.0, -9.8]))
                with qd.when((i < WALL) & (speed[0] < 0)):
                    speed[0] = 0.0
                with qd.when((i > GRID - 1 - WALL) & (speed[0] > 0)):
                    speed[0] = 0.0
                with qd.when((j < WALL) & (speed[1] < 0)):
                    speed[1] = 0.0
                with qd.when((j > GRID - 1 - WALL) & (speed[1] > 0)):
                    speed[1] = 0.0
                momentum[i, j] = speed[:]
        for p in qd.range(n):
            at, from_it, w = near(x[p])
            new_v, new_c = qd.local(jnp.zeros(2)), qd.local(jnp.zeros((2, 2)))
            for i, j in qd.ndrange(3, 3):
                weight = w[i, 0] * w[j, 1]
                away = (jnp.array([i, j]) - from_it) * DX
                speed = momentum[at[0] + i, at[1] + j]
                new_v.value = new_v.value + weight * speed
                new_c.value = new_c.value + 4 / DX**2 * weight * jnp.outer(speed, away)
            v[p] = new_v.value
            c[p] = new_c.value
            x[p] = x[p] + DT * new_v.value
        k[()] += 1
    return jnp.mean(x[...], 0)


def loss(parameters, steps):
    """How far from the target it ends, from (velocity, stiffness)."""
    return ((centre(*parameters, steps) - TARGET) ** 2).sum()
