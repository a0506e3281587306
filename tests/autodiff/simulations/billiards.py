"""Rigid discs on a table: where must the first be sent so that the last stops at a target?

In each step, pairs that touch and come closer exchange momentum along the line between them, and are put back to where
they were when they met; without the latter the derivative of a collision by positions is wrong.
"""

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

RADIUS, DT, FRICTION, ELASTICITY = 0.05, 0.02, 0.3, 0.9
DISCS = np.array([[0.1, 0.5], [0.45, 0.52], [0.56, 0.56], [0.56, 0.44]])
TARGET = np.array([0.85, 0.7])


@qd.jit
def rolled(start, velocity, steps):
    """Positions of all discs after `steps` steps, from position and velocity of the first."""
    n = len(DISCS)
    x, v = qd.copy(jnp.asarray(DISCS)), qd.zeros((n, 2))
    x_new, v_new, k = qd.zeros((n, 2)), qd.zeros((n, 2)), qd.zeros((), jnp.int32)
    for d in qd.range(2):
        x[0, d] = start[d]
        v[0, d] = velocity[d]
    for _ in qd.while_(lambda: k[()] < steps):
        for i in qd.range(n):
            push, jump = qd.local(jnp.zeros(2)), qd.local(jnp.zeros(2))
            for j in qd.range(n):
                way = x[i] - x[j]
                apart = jnp.sqrt(way @ way + jnp.where(i == j, 1.0, 0.0))
                with qd.when((i != j) & (apart < 2 * RADIUS)):
                    direction = way / apart
                    closing = (v[i] - v[j]) @ direction
                    with qd.when(closing < 0):
                        mine = -0.5 * (1 + ELASTICITY) * closing * direction
                        ago = jnp.minimum((apart - 2 * RADIUS) / closing, DT)
                        push.value = push.value + mine
                        jump.value = jump.value - ago * mine
            v_new[i] = (v[i] + push.value) * np.exp(-FRICTION * DT)
            x_new[i] = x[i] + jump.value + DT * v_new[i]
        for i in qd.range(n):
            x[i] = x_new[i]
            v[i] = v_new[i]
        k[()] += 1
    return x


def loss(parameters, steps):
    """The square of the distance of the last disc but one from the target, from (start, velocity)."""
    return ((rolled(*parameters, steps)[2] - TARGET) ** 2).sum()
