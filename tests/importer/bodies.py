"""Programs people write, over any implementation of the tracing API (the first argument)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

RNG = np.random.default_rng(11)
BODIES: dict[str, tuple[Any, tuple[Any, ...]]] = {}
CONDITIONAL: dict[str, tuple[Any, tuple[Any, ...]]] = {}
"""Bodies with conditions and loops that plain Python cannot run, so that they have no eager result."""


def body(*args: Any, table: dict[str, tuple[Any, tuple[Any, ...]]] = BODIES) -> Any:
    """Registers a body with its arguments (floats in f64; tests cast them)."""

    def register(fn: Any) -> Any:
        table[fn.__name__] = (fn, args)
        return fn

    return register


def _weights(fx):
    return [0.5 * (1.5 - fx) ** 2, 0.75 - (fx - 1) ** 2, 0.5 * (fx - 0.5) ** 2]


def _rotation2(f):
    a, b = f[0, 0] + f[1, 1], f[1, 0] - f[0, 1]
    r = jnp.sqrt(a * a + b * b)
    return jnp.array([[a, -b], [b, a]]) / r


@body(RNG.random((3, 2)) * 0.4 + 0.3, RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2, 2)) * 0.1,
      np.tile(np.eye(2), (3, 1, 1)) + 0.05 * RNG.normal(size=(3, 2, 2)), np.ones(3))  # fmt: skip
def material_points_2d(qd, x, v, c, f, jp):
    """Snow: particles to a grid, forces on the grid, grid to particles."""
    grid, dt = 6, 1e-3
    dx = 1.0 / grid
    momentum, mass = qd.zeros((grid, grid, 2), x.dtype), qd.zeros((grid, grid), x.dtype)
    for p in qd.range(3):
        base = (x[p] * grid - 0.5).astype(jnp.int32)
        fx = x[p] * grid - base
        w = _weights(fx)
        deformed = (jnp.eye(2, dtype=x.dtype) + dt * c[p]) @ f[p]
        hard = jnp.clip(jnp.exp(10 * (1 - jp[p])), 0.1, 5.0)
        r, j = _rotation2(deformed), jnp.linalg.det(deformed)
        f[p] = deformed
        stress = 2 * hard * (deformed - r) @ deformed.T + jnp.eye(2, dtype=x.dtype) * hard * j * (j - 1)
        affine = -dt * stress + c[p]
        for a in range(3):
            for b in range(3):
                at = base + jnp.array([a, b])
                weight = w[a][0] * w[b][1]
                momentum[at[0], at[1]] += weight * (v[p] + affine @ ((jnp.array([a, b]) - fx) * dx))
                mass[at[0], at[1]] += weight
    for a, b in qd.ndrange(grid, grid):
        m = mass[a, b]
        velocity = momentum[a, b] / jnp.where(m > 0, m, 1)
        velocity = velocity.at[1].add(-dt * 9.8)
        velocity = jnp.where((a < 2) & (velocity < 0), 0.0, velocity)
        momentum[a, b] = jnp.where(m > 0, velocity, 0.0)
    for p in qd.range(3):
        base = (x[p] * grid - 0.5).astype(jnp.int32)
        fx = x[p] * grid - base
        w = _weights(fx)
        new_v, new_c = jnp.zeros(2, x.dtype), jnp.zeros((2, 2), x.dtype)
        for a in range(3):
            for b in range(3):
                g = momentum[base[0] + a, base[1] + b]
                weight = w[a][0] * w[b][1]
                new_v += weight * g
                new_c += 4 * grid * weight * jnp.outer(g, jnp.array([a, b]) - fx)
        v[p], c[p] = new_v, new_c
        x[p] = x[p] + dt * new_v
    return x, v, c, f


@body(0.1 * RNG.normal(size=(4, 3, 3)) + np.eye(3))
def material_points_3d_stress(qd, f):
    """Corotated elasticity with an iterated polar decomposition."""
    out = qd.zeros((4, 3, 3), f.dtype)
    for p in qd.range(4):
        start = f[p]
        r, _ = lax.while_loop(
            lambda s: (s[1] < 20) & (jnp.sum((s[0].T @ s[0] - jnp.eye(3, dtype=f.dtype)) ** 2) > 1e-10),
            lambda s: (0.5 * (s[0] + jnp.linalg.inv(s[0]).T), s[1] + 1),
            (start, 0),
        )
        j = jnp.linalg.det(start)
        out[p] = (
            2 * (start - r) @ start.T
            + jnp.eye(3, dtype=f.dtype) * j * (j - 1)
            + jnp.trace(start) * jnp.linalg.norm(start)
        )
    return out


@body(0.1 * RNG.normal(size=(4, 3, 3)) + np.diag([1.0, 1.3, 0.7]))
def clamped_singular_values(qd, f):
    """Plasticity: U clip(S) V^T."""
    out = qd.zeros((4, 3, 3), f.dtype)
    for p in qd.range(4):
        u, s, v = jnp.linalg.svd(f[p])
        out[p] = u @ jnp.diag(jnp.clip(s, 0.9, 1.1)) @ v
    return out


@body(RNG.normal(size=(6, 3)), RNG.normal(size=(6, 3)), np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]], np.int32))
def mass_spring(qd, x, v, edges):
    """Springs scatter forces to their ends."""
    force = qd.zeros((6, 3), x.dtype)
    for e in qd.range(5):
        a, b = edges[e, 0], edges[e, 1]
        d = x[b] - x[a]
        length = jnp.linalg.norm(d)
        n = d / jnp.maximum(length, 1e-6)
        pull = 10.0 * (length - 1.0) * n + 0.1 * jnp.dot(v[b] - v[a], n) * n
        force[a] += pull
        force[b] += -pull
    for i in qd.range(6):
        v[i] = v[i] + 1e-2 * (force[i] + jnp.array([0.0, -9.8, 0.0], x.dtype))
        x[i] = x[i] + 1e-2 * v[i]
    return x, v


@body(RNG.normal(size=(6, 3)))
def n_body(qd, x):
    """All pairs, a vector cell as the sum."""
    out = qd.zeros((6, 3), x.dtype)
    for i in qd.range(6):
        total = qd.local(jnp.zeros(3, x.dtype))
        for j in qd.range(6):
            r = x[j] - x[i]
            total += r * lax.rsqrt(jnp.sum(r * r) + 1e-3) ** 3
        out[i] = total.value
    return out


@body(
    np.array([0, 2, 2, 5, 6], np.int32), np.array([0, 3, 1, 2, 3, 0], np.int32), RNG.normal(size=6), RNG.normal(size=4)
)
def sparse_rows(qd, start, column, value, x):
    """Rows of different length."""
    y = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        total = qd.local(jnp.zeros((), x.dtype))
        for k in qd.range(start[i], start[i + 1]):
            total += value[k] * x[column[k]]
        y[i] = total.value
    return y


def _distance(p):
    q = jnp.abs(p) - jnp.array([0.5, 0.3, 0.4], p.dtype)
    outside = jnp.sqrt(jnp.sum(jnp.maximum(q, 0.0) ** 2) + 1e-12)
    box = outside + jnp.minimum(jnp.max(q), 0.0)
    return jnp.minimum(box, jnp.linalg.norm(p - jnp.array([0.5, 0.5, 0.0], p.dtype)) - 0.4)


@body(np.array(0.0))
def ray_march(qd, start):
    """Sphere tracing; normals by jax.grad of the distance."""
    image = qd.zeros((2, 3), start.dtype)
    for i, j in qd.ndrange(2, 3):
        origin = jnp.array([0.0, 0.0, -2.0], start.dtype)
        ray = jnp.stack([i / 2.0 - 0.5, j / 3.0 - 0.5, 1.0]).astype(start.dtype)
        ray = ray / jnp.linalg.norm(ray)
        at = lambda t, origin=origin, ray=ray: _distance(origin + t * ray)  # noqa: E731 - one expression
        t, _, _ = lax.while_loop(
            lambda s: (s[0] < 5.0) & (s[1] > 1e-3) & (s[2] < 64),
            lambda s, at=at: (s[0] + s[1], at(s[0] + s[1]), s[2] + 1),
            (start, at(start), 0),
        )
        n = jax.grad(_distance)(origin + t * ray)
        light = jnp.dot(n / (jnp.linalg.norm(n) + 1e-6), jnp.array([0.5, 0.5, -0.7], start.dtype))
        image[i, j] = jnp.where(t < 5.0, jnp.maximum(0.0, light), 0.0)
    return image


@body(RNG.random(4) + 1)
def newton(qd, a):
    """A root of z cosh z = a with the derivative by jax.grad."""
    y = qd.zeros(4, a.dtype)
    for i in qd.range(4):
        target = a[i]
        f = lambda z, target=target: jnp.cosh(z) * z - target  # noqa: E731 - differentiated below
        one = jnp.ones((), a.dtype)

        def step(s, f=f):
            d = f(s[0]) / jax.grad(f)(s[0])
            return s[0] - d, d, s[2] + 1

        y[i] = lax.while_loop(lambda s: (jnp.abs(s[1]) > 1e-6) & (s[2] < 30), step, (one, one, 0))[0]
    return y


_TABLEAU = (
    (),
    (1 / 4,),
    (3 / 32, 9 / 32),
    (1932 / 2197, -7200 / 2197, 7296 / 2197),
    (439 / 216, -8, 3680 / 513, -845 / 4104),
    (-8 / 27, 2, -3544 / 2565, 1859 / 4104, -11 / 40),
)
_FOURTH = (25 / 216, 0, 1408 / 2565, 2197 / 4104, -1 / 5, 0)
_FIFTH = (16 / 135, 0, 6656 / 12825, 28561 / 56430, -9 / 50, 2 / 55)


@body(RNG.random((3, 2)) + 0.5, RNG.random(3) + 0.5)
def adaptive_runge_kutta(qd, start, rate):
    """Fehlberg's pair on predator and prey, each lane with its own step size."""
    out = qd.zeros((3, 2), start.dtype)
    for i in qd.range(3):
        a = rate[i]

        def slope(y, a=a):
            return jnp.stack([a * y[0] - y[0] * y[1], -y[1] + y[0] * y[1]])

        def step(s, slope=slope):
            t, y, h, n = s
            h = jnp.minimum(h, 2 - t)
            ks: list[Any] = []
            for row in _TABLEAU:
                ks.append(slope(y + h * sum((c * k for c, k in zip(row, ks, strict=True)), jnp.zeros_like(y))))
            new = y + h * sum(c * k for c, k in zip(_FIFTH, ks, strict=True))
            error = h * sum((p - q) * k for p, q, k in zip(_FIFTH, _FOURTH, ks, strict=True))
            size = jnp.sqrt(jnp.mean((error / (1e-6 + 1e-4 * jnp.maximum(jnp.abs(y), jnp.abs(new)))) ** 2))
            good = size <= 1
            h = h * jnp.clip(0.9 * (size + 1e-10) ** -0.2, 0.2, 5.0)
            return jnp.where(good, t + s[2].clip(max=2 - t), t), jnp.where(good, new, y), h, n + 1

        zero = jnp.zeros((), start.dtype)
        out[i] = lax.while_loop(lambda s: (s[0] < 2) & (s[3] < 500), step, (zero, start[i], zero + 0.01, 0))[1]
    return out


@body(RNG.random((3, 2)) + 0.5)
def fixed_runge_kutta(qd, start):
    """50 classical steps in a fori_loop."""
    out = qd.zeros(3, start.dtype)
    for i in qd.range(3):

        def slope(y):
            return jnp.stack([1.1 * y[0] - 0.4 * y[0] * y[1], -0.4 * y[1] + 0.1 * y[0] * y[1]])

        def step(_, y):
            k1 = slope(y)
            k2 = slope(y + 0.005 * k1)
            k3 = slope(y + 0.005 * k2)
            k4 = slope(y + 0.01 * k3)
            return y + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + k4)

        out[i] = jnp.sum(lax.fori_loop(0, 50, step, start[i]))
    return out


def _quaternion_product(a, b):
    w, v, z, u = a[0], a[1:], b[0], b[1:]
    return jnp.concatenate([(w * z - jnp.dot(v, u))[None], w * u + z * v + jnp.cross(v, u)])


@body(np.tile([1.0, 0, 0, 0], (3, 1)) + 0.1 * RNG.normal(size=(3, 4)), RNG.normal(size=(3, 3)))
def rigid_body(qd, q, w):
    """Orientation by quaternions."""
    for b in qd.range(3):
        inertia = jnp.array([1.0, 2.0, 3.0], q.dtype)
        spin = w[b] + 0.01 * jnp.cross(-w[b], inertia * w[b]) / inertia
        w[b] = spin
        turned = q[b] + 0.005 * _quaternion_product(q[b], jnp.concatenate([jnp.zeros(1, q.dtype), spin]))
        q[b] = turned / jnp.sqrt(turned @ turned)
    return q, w


@body(np.array([3, 1, 4, 1], np.int32))
def random_walks(qd, seed):
    """A stream of random numbers for each lane."""
    y = qd.zeros((4, 3), jnp.float32)
    key = jax.random.key(7)
    noise = lambda a, b: jax.random.uniform(a, (3,), jnp.float32) + jax.random.normal(b, (), jnp.float32)  # noqa: E731
    for i in qd.range(4):
        k1, k2, k3 = jax.random.split(jax.random.fold_in(key, seed[i] + i), 3)
        y[i] = noise(k1, k2) + jax.random.randint(k3, (), 0, 10, jnp.int32)
    return y


@body(RNG.normal(size=(4, 5)))
def order_statistics(qd, x):
    """Small sorts."""
    y = qd.zeros(4, x.dtype)
    for i in qd.range(4):
        v = x[i]
        y[i] = jnp.sort(v)[2] + v[jnp.argsort(v)[0]] + jnp.median(v) + v[jnp.argmax(v)] + jnp.cumsum(v)[3]
    return y


@body(RNG.normal(size=5), np.array([0, 1, 2, 1, 0], np.int32))
def switch_and_cond(qd, x, which):
    """Branches with different work."""
    y = qd.zeros(5, x.dtype)
    for i in qd.range(5):
        a = x[i]
        branches = [
            jnp.sin,
            lambda a: jax.nn.gelu(a) + jax.nn.softplus(a),
            lambda a: jnp.hypot(a, 1.0) ** 1.5 + jnp.mod(a, 0.3),
        ]
        y[i] = lax.switch(which[i], branches, a) + lax.cond(a > 0, lambda a=a: a, lambda a=a: -a)
    return y


@body(RNG.normal(size=(3, 3, 3)) + 3 * np.eye(3), RNG.normal(size=(3, 3)))
def small_linear_algebra(qd, a, b):
    """Every factorisation once."""
    y = qd.zeros((3, 6), a.dtype)
    for i in qd.range(3):
        m = a[i]
        s = m @ m.T
        y[i] = jnp.stack([
            jnp.linalg.solve(m, b[i])[0], jnp.linalg.cholesky(s)[2, 1], jnp.linalg.inv(m)[0, 0],
            jnp.linalg.eigh(s)[0][0], jnp.linalg.svd(m)[1][0], jnp.linalg.qr(m)[1][0, 0],
        ])  # fmt: skip
    return y


@body(np.array(0.5), table=CONDITIONAL)
def ray_march_until_a_break(qd, height):
    """A loop of a fixed length, which is left early."""
    image = qd.zeros((4, 6), height.dtype)

    def distance(p):
        return jnp.minimum(jnp.linalg.norm(p) - 0.5, p[1] + height[()])

    for i, j in qd.ndrange(4, 6):
        origin = jnp.array([0.0, 0.0, -2.0], height.dtype)
        ray = jnp.stack([i / 4 - 0.5, j / 6 - 0.5, 1.0]).astype(height.dtype)
        t = qd.local(jnp.zeros((), height.dtype))
        for _ in qd.range(64):
            d = distance(origin + t * ray)
            qd.break_if((d < 1e-3) | (t > 5.0))
            t += d
        normal = jax.grad(distance)(origin + t * ray)
        image[i, j] = jnp.where(t < 5.0, jnp.maximum(0.0, normal @ jnp.array([0.5, 0.5, -0.7])), 0.0)
    return image


@body(RNG.random((3, 2)) + 0.5, table=CONDITIONAL)
def adaptive_steps(qd, start):
    """Steps that are taken where their error is small."""
    out = qd.zeros((3, 2), start.dtype)

    def field(y):
        return jnp.stack([1.1 * y[0] - 0.4 * y[0] * y[1], -0.4 * y[1] + 0.1 * y[0] * y[1]])

    for i in qd.range(3):
        t, h = qd.local(jnp.zeros((), start.dtype)), qd.local(jnp.full((), 0.1, start.dtype))
        y = qd.local(start[i])
        for _ in qd.while_(lambda t=t: t < 2.0):
            step = jnp.minimum(h.value, 2.0 - t)
            k1 = field(y.value)
            k2 = field(y + step * k1)
            error = jnp.max(jnp.abs(k1 - k2)) * step
            with qd.when(error < 1e-3):
                t += step
                y += 0.5 * step * (k1 + k2)
            h.value = step * jnp.clip(0.9 * lax.rsqrt(error + 1e-9) * 0.03, 0.2, 5.0)
        out[i] = y
    return out


@body(RNG.normal(size=(6, 2)), table=CONDITIONAL)
def sorted_neighbours(qd, points):
    """Insertion into a private array."""
    best = qd.zeros((6, 3), points.dtype)
    for i in qd.range(6):
        near = qd.local(jnp.full(3, jnp.inf, points.dtype))
        for j in qd.range(6):
            d = jnp.sum((points[i] - points[j]) ** 2)
            with qd.when(d < near[2]):
                k = qd.local(2)
                for _ in qd.while_(lambda k=k, near=near, d=d: (k > 0) & (near[jnp.maximum(k - 1, 0)] > d)):
                    near[k] = near[k - 1]
                    k -= 1
                near[k] = d
        best[i] = near
    return best
