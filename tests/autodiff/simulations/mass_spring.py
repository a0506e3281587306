"""A robot of masses and springs on the ground; a small neural network sets the lengths of its springs.

The network sees oscillations and where the masses are around their centre. Loss: minus the distance that the centre has
moved. Steps are a `qd.while_` around loops, so that their number is an argument.
"""

import jax.numpy as jnp
import numpy as np

import qdtrace as qd

DT, STIFFNESS, DAMPING, GRAVITY = 0.02, 60.0, 0.5, -3.0
WAVES, AMPLITUDE = 3, 0.25
POINTS = np.array([[0.0, 0.0], [0.5, 0.0], [1.0, 0.0], [0.25, 0.4], [0.75, 0.4]])
SPRINGS = np.array([[0, 1], [1, 2], [3, 4], [0, 3], [1, 3], [1, 4], [2, 4]], np.int32)
REST = np.linalg.norm(POINTS[SPRINGS[:, 0]] - POINTS[SPRINGS[:, 1]], axis=1)
FEATURES = WAVES + 2 * len(POINTS)


def weights(hidden: int = 6) -> dict[str, np.ndarray]:
    """A network to begin with."""
    rng = np.random.default_rng(1)
    return {
        "w1": rng.normal(size=(hidden, FEATURES)) * 0.4,
        "b1": np.zeros(hidden),
        "w2": rng.normal(size=(len(SPRINGS), hidden)) * 0.4,
        "b2": np.zeros(len(SPRINGS)),
    }


@qd.jit
def loss(net, steps):
    """Minus the way of the centre in `steps` steps."""
    w1, b1, w2, b2 = net["w1"], net["b1"], net["w2"], net["b2"]
    n, hidden = len(POINTS), b1.shape[0]
    edges, rest = jnp.asarray(SPRINGS), jnp.asarray(REST)
    x, v = qd.copy(jnp.asarray(POINTS)), qd.zeros((n, 2))
    centre, layer, goal = qd.zeros(2), qd.zeros(hidden), qd.zeros(len(SPRINGS))
    force, k = qd.zeros((n, 2)), qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: k[()] < steps):
        for d in qd.range(2):
            centre[d] = 0.0
        for i in qd.range(n):
            centre[0] += x[i, 0] / n
            centre[1] += x[i, 1] / n
            force[i] = jnp.array([0.0, GRAVITY])
        for h in qd.range(hidden):
            total = qd.local(b1[h])
            for w in qd.range(WAVES):
                total += w1[h, w] * jnp.sin(8.0 * DT * k[()] + 2 * np.pi / WAVES * w)
            for i, d in qd.ndrange(n, 2):
                total += w1[h, WAVES + 2 * i + d] * (x[i, d] - centre[d])
            layer[h] = jnp.tanh(total.value)
        for s in qd.range(len(SPRINGS)):
            total = qd.local(b2[s])
            for h in qd.range(hidden):
                total += w2[s, h] * layer[h]
            goal[s] = rest[s] * (1 + AMPLITUDE * jnp.tanh(total.value))
        for s in qd.range(len(SPRINGS)):
            a, b = edges[s, 0], edges[s, 1]
            way = x[b] - x[a]
            length = jnp.linalg.norm(way) + 1e-6
            pull = STIFFNESS * (length - goal[s]) / length * way
            force[a] += pull
            force[b] += -pull
        for i in qd.range(n):
            speed = qd.local(v[i] * np.exp(-DAMPING * DT) + DT * force[i])
            with qd.when((x[i, 1] < 0) & (speed[1] < 0)):  # it holds on to the ground
                speed[0] = 0.1 * speed[0]
                speed[1] = -0.0 * speed[1]
            v[i] = speed[:]
            x[i] = x[i] + DT * speed[:]
        k[()] += 1
    return -(jnp.mean(x[:, 0]) - POINTS[:, 0].mean())
