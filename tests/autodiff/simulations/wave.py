"""The wave equation on a square with fixed edges: which initial heights lead to a given picture?

All times are planes of one array, and each step is a loop of its own in the program. Loss: the sum of squares of what
the last plane differs by from the picture.
"""

import jax.numpy as jnp

import qdtrace as qd

SPEED, LOSS = 0.4, 0.02
"""The square of (wave speed x time step / distance of points), and what a step takes off the velocity."""


@qd.jit(static_argnames=["steps"])
def heights(start, steps):
    """The last plane, from the first, which is also the second: the start is at rest."""
    n = start.shape[0]
    u = qd.zeros((steps + 1, n, n), start.dtype)
    for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
        u[0, i, j] = start[i, j]
        u[1, i, j] = start[i, j]
    for t in range(1, steps):
        for i, j in qd.ndrange((1, n - 1), (1, n - 1)):
            around = u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1] - 4 * u[t, i, j]
            u[t + 1, i, j] = u[t, i, j] + (1 - LOSS) * (u[t, i, j] - u[t - 1, i, j]) + SPEED * around
    return u[steps]


def loss(start, picture, steps):
    """How far the last plane is from the picture."""
    return jnp.sum((heights(start, steps) - picture) ** 2)
