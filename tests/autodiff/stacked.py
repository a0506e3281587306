"""Functions of two arrays as kernels and in `jnp`, and what JAX makes of such functions, for stacks drawn of these."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

import qdtrace as qd

Function: TypeAlias = "Callable[[Any, Any], Any]"


@qd.jit
def _elementwise(x, y):
    z = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        z[i] = jnp.sin(x[i]) * y[i] + x[i] ** 2
    return z


@qd.jit
def _neighbours(x, y):
    z, n = qd.zeros(x.shape, x.dtype), x.shape[0]
    for i in qd.range(n):
        z[i] += x[i] * y[(i + 1) % n]
        z[(i + 2) % n] += y[i] * 0.5
    return z


@qd.jit
def _recurrence(x, y):
    z = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        s = qd.local(x[i])
        for k in qd.range(3):
            s[()] = s[()] * 0.5 + jnp.tanh(y[i] + k)
        z[i] = s[()]
    return z


def _recurrence_of_arrays(x, y):
    for k in range(3):
        x = x * 0.5 + jnp.tanh(y + k)
    return x


@qd.vmap
def _lanes(x, y):
    def step(state):
        return state[0] + 1, state[1] * 0.7 + jnp.cos(y) * state[0]

    return lax.while_loop(lambda state: state[0] < 4, step, (0, x))[1]


def _lanes_of_arrays(x, y):
    for k in range(4):
        x = x * 0.7 + jnp.cos(y) * k
    return x


@qd.jit
def _sum_and_use(x, y):
    t = qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0]):
        t[()] += x[i] * y[i]
    z = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        z[i] = t[()] * x[i] + y[i]
    return z


@qd.jit
def _guarded(x, y):
    z = qd.zeros(x.shape, x.dtype)
    for i in qd.range(x.shape[0]):
        with qd.when(x[i] > 0):
            z[i] = x[i] * y[i]
    return z


KERNELS: Mapping[str, tuple[Function, Function]] = {
    "elementwise": (_elementwise, lambda x, y: jnp.sin(x) * y + x**2),
    "neighbours": (_neighbours, lambda x, y: x * jnp.roll(y, -1) + jnp.roll(y, 2) * 0.5),
    "recurrence": (_recurrence, _recurrence_of_arrays),
    "lanes": (_lanes, _lanes_of_arrays),
    "sum and use": (_sum_and_use, lambda x, y: jnp.sum(x * y) * x + y),
    "guarded": (_guarded, lambda x, y: jnp.where(x > 0, x * y, 0)),
}


def _with_backward(g: Function) -> Function:
    @jax.custom_vjp
    def h(x, y):
        return g(x, y)

    h.defvjp(lambda x, y: (g(x, y), (x, y)), lambda point, ct: (jax.vjp(g, *point)[1](ct)[0] * 0.5, ct))
    return h


def _with_tangents(g: Function) -> Function:
    @jax.custom_jvp
    def h(x, y):
        return g(x, y)

    @h.defjvp
    def _(point, direction):
        value, tangent = jax.jvp(g, point, direction)
        return value, tangent * 2

    return h


def _scanned(g: Function, body: Callable[[Function], Function] = lambda f: f) -> Function:
    step = body(lambda c, u: (jnp.tanh(g(c, u)), jnp.sum(c)))
    return lambda x, y: lax.scan(step, x, jnp.stack([y * 0.3, y * 0.7]))[0]


def _chosen(g: Function) -> Function:
    branches = [g, lambda x, y: x - y, lambda x, y: g(y, x) * 2]
    return lambda x, y: lax.switch(jnp.int32(jnp.abs(x[0]) * 10) % 3, branches, x, y)


TRANSFORMATIONS: Mapping[str, Callable[[Function], Function]] = {
    "jit": jax.jit,
    "swapped": lambda g: lambda x, y: g(y, x),
    "gradient by the first": lambda g: jax.grad(lambda x, y: jnp.sum(jnp.sin(g(x, y)))),
    "gradient by the second": lambda g: jax.grad(lambda x, y: jnp.sum(g(x, y) ** 2), 1),
    "tangent": lambda g: lambda x, y: jax.jvp(lambda a: g(a, y), (x,), (y,))[1],
    "linearised": lambda g: lambda x, y: jax.linearize(lambda a: g(a, y), x)[1](y * 0.3),
    "adjoint that moves": lambda g: lambda x, y: jax.vjp(g, x, y)[1](jnp.cos(x))[1],
    "curvature": lambda g: lambda x, y: jax.jvp(jax.grad(lambda a: jnp.sum(jnp.tanh(g(a, y)))), (x,), (y,))[1],
    "forward Jacobian": lambda g: lambda x, y: jax.jacfwd(lambda a: g(a, y))(x) @ y,
    "reverse Jacobian": lambda g: lambda x, y: y @ jax.jacrev(lambda a: g(a, y))(x),
    "batch": lambda g: lambda x, y: jax.vmap(g)(jnp.stack([x, 2 * x, -x]), jnp.stack([y, x, y])).sum(0),
    "batch of columns": lambda g: (
        lambda x, y: jax.vmap(lambda a: g(x, a), in_axes=1, out_axes=1)(jnp.stack([y, -y], 1)).sum(1)
    ),
    "map": lambda g: lambda x, y: lax.map(lambda p: g(*p), (jnp.stack([x, y]), jnp.stack([y, y * 0.5]))).sum(0),
    "scan": _scanned,
    "scan of steps made again": lambda g: _scanned(g, jax.checkpoint),
    "loop": lambda g: lambda x, y: lax.fori_loop(0, 2, lambda _, c: jnp.tanh(g(c, y)), x),
    "branch": lambda g: lambda x, y: lax.cond(jnp.sum(x) > 0, g, lambda a, b: g(b, a), x, y),
    "switch": _chosen,
    "made again": lambda g: jax.checkpoint(lambda x, y: jnp.sin(g(x, y))),
    "rule for reverse mode": _with_backward,
    "rule for tangents": _with_tangents,
}
