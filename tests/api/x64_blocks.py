"""Lanes and bodies that compute in 64 bits in a block of `jax.enable_x64(True)`, while the mode is off around it."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import qdtrace as qd

THIRDS = np.array([0.1, 0.2, 0.3, 1 / 3])
TABLE = np.linspace(0.1, 1.0, 300)


def in_64(f: Callable[..., Any]) -> Callable[..., Any]:
    """Runs a function in the x64 mode."""

    def run(*args: Any) -> Any:
        with jax.enable_x64(True):
            return f(*args)

    return run


@in_64
def _wide_table() -> Any:
    return jnp.asarray(TABLE)


def _f64(x: Any) -> Any:
    return x.astype("float64")


@jax.custom_jvp
def _ruled(x: Any) -> Any:
    return jnp.sin(x)


@_ruled.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x,), (t,) = primals, tangents
    with jax.enable_x64(True):
        slope = jnp.cos(_f64(x)) * 0.9
        return _ruled(x), (slope * t).astype(x.dtype)


@jax.custom_vjp
def _reversed(x: Any) -> Any:
    return jnp.sin(x)


def _forward(x: Any) -> Any:
    with jax.enable_x64(True):
        return jnp.sin(x), _f64(x) * 0.9


def _backward(kept: Any, ct: Any) -> Any:
    with jax.enable_x64(True):
        return ((jnp.cos(kept) * ct).astype(ct.dtype),)


_reversed.defvjp(_forward, _backward)


def _counted(x: Any) -> Any:
    k = (x * 3).astype("int64") * jnp.int64(2) ** 33 + 1
    return _f64(k % 1000003) / 1000 + x


WIDE: dict[str, Callable[[Any], Any]] = {
    "scale": lambda x: _f64(x) * 0.1,
    "fori_loop": lambda x: lax.fori_loop(0, 3, lambda i, s: s * 0.9 + i, _f64(x)),
    "while_loop": lambda x: lax.while_loop(
        lambda s: s[1] < 4, lambda s: (s[0] * 0.9, s[1] + 1), (_f64(x), jnp.int64(0))
    )[0],
    "scan": lambda x: lax.scan(lambda c, a: (c * a + 0.1, c), _f64(x), jnp.linspace(0.0, 1.0, 5))[0],
    "cond": lambda x: lax.cond(x > 0.5, lambda v: v * 0.3, lambda v: v * 0.7, _f64(x)),
    "where": lambda x: jnp.where(x > 0.3, _f64(x) * 0.1, 0.7),
    "constants": lambda x: (THIRDS * x).sum(),
    "large constant": lambda x: jnp.dot(jnp.asarray(TABLE), jnp.sin(_f64(x) * jnp.arange(300) / 100)),
    "gather": lambda x: _wide_table()[jnp.clip((jnp.abs(x) * 50).astype("int32"), 0, 299)] * x,
    "integers": _counted,
    "memory": lambda x: (jnp.arange(40.0) * x).at[3].add(0.1).sum() / 1000,
    "registers": lambda x: jnp.linalg.norm((jnp.arange(4.0) * x).at[jnp.int32(2)].multiply(0.1)) / 10,
    "complex": lambda x: jnp.abs(jnp.exp(x.astype("complex128") * (0.1 + 0.2j))),
    "custom_jvp": lambda x: _ruled(_f64(x) * 0.1),
    "custom_vjp": lambda x: _reversed(_f64(x) * 0.1),
    "jit": lambda x: jax.jit(lambda v: v * 0.3)(_f64(x)),
    "logsumexp": lambda x: jax.nn.logsumexp(jnp.stack([_f64(x), x * 0.5, 0.1])),
    "sort": lambda x: jnp.sort(THIRDS * x)[2] + jnp.max(THIRDS * x),
    "solve": lambda x: jnp.linalg.solve(jnp.eye(2) * 3 + 0.1, jnp.stack([_f64(x), 1.0])).sum(),
    "checkpoint": lambda x: jax.checkpoint(lambda v: jnp.sin(v * 0.1))(_f64(x)),
    "grad": lambda x: jax.grad(lambda v: jnp.sin(v * 0.1) * v)(_f64(x)),
    "vmap": lambda x: jnp.sum(jax.vmap(lambda v: v * 0.1 + x)(jnp.arange(5.0))),
}
"""Steps that run in a block."""
AROUND: dict[str, Callable[[Any], Any]] = {
    "sin": jnp.sin,
    "square": lambda x: x * x,
    "cond outside": lambda x: lax.cond(x > 0.5, jnp.sin, jnp.cos, x),
    "rule": _ruled,
    "backward rule": _reversed,
}
"""Steps that run outside of blocks and keep 64 bits."""
NARROW: dict[str, Callable[[Any], Any]] = {"add outside": lambda x: x + 1, "astype": lambda x: x.astype("float32")}
"""Steps that JAX narrows outside of blocks."""
STEPS = {**{name: in_64(f) for name, f in WIDE.items()}, **AROUND, **NARROW}


def lane(names: tuple[str, ...]) -> Callable[[Any], Any]:
    """Returns the function of one element that runs the steps in order."""

    def run(x: Any) -> Any:
        for name in names:
            x = STEPS[name](x)
        return x

    return run


# Bodies: each computes 64-bit results of three f32 numbers. `want` is the same by NumPy.


def _new(kind: Callable[..., Any], *args: Any) -> Any:
    return in_64(kind)(*args)


def filled(x: Any) -> Any:
    out = _new(qd.full, 3, 0.1, np.float64)
    for i in qd.range(3):
        out[i] += in_64(lambda i: _f64(x[i]) * 0.1)(i)
    return out


def like(x: Any) -> Any:
    whole = in_64(lambda: _f64(x[...]) * 0.1)()
    out, first = qd.empty_like(whole), qd.full(3, whole[0])
    for i in qd.range(3):
        out[i] = whole[i]
    for i in qd.range(3):
        out[i] += first[i]
    return out


def copied(x: Any) -> Any:
    out = qd.copy(in_64(lambda: _f64(x[...]) * 0.1)())
    for i in qd.range(3):
        with jax.enable_x64(True):
            out[i] *= 0.3
    return out


def numbers(x: Any) -> Any:
    out = _new(qd.ones, 3, np.float64)
    out[...] = THIRDS[:3]
    for i in qd.range(3):
        out[i] += x[i]
    for i in qd.range(3):
        out[i] += np.float64(0.1)
    return out


def cells(x: Any) -> Any:
    out = _new(qd.empty, 3, np.float64)
    for i in qd.range(3):
        s = qd.local(in_64(lambda i: _f64(x[i]) * 0.1)(i))
        for _ in qd.while_(lambda s=s: s > 0.01):
            with jax.enable_x64(True):
                s.value = s * 0.3
        out[i] = s
    return out


def total(x: Any) -> Any:
    out = _new(qd.zeros, (), np.float64)
    for i in qd.range(3):
        out[...] += in_64(lambda i: _f64(x[i]) * 0.1)(i)
    return out


def around_tasks(x: Any) -> Any:
    out, n = _new(qd.full, 3, 0.1, np.float64), qd.zeros((), jnp.int32)
    for _ in qd.while_(lambda: n < 3):
        for i in qd.range(3):
            with jax.enable_x64(True):
                out[i] *= _f64(x[i]) * 0.1
        n[...] += 1
    return out


def conditional(x: Any) -> Any:
    out = _new(qd.full, 3, 0.1, np.float64)
    with qd.when(x[0] > 0):
        for i in qd.range(3):
            with jax.enable_x64(True):
                out[i] += _f64(x[i]) * 0.1
    return out


def between_loops(x: Any) -> Any:
    out = _new(qd.zeros, (3, 40), np.float64)
    out[1] = in_64(lambda: jnp.arange(40.0) * 0.1)()
    with jax.enable_x64(True):
        out[2, 1] = _f64(x[0]) * 0.1
    for i in qd.range(3):
        with jax.enable_x64(True):
            out[i, 0] = out[i, 1] * 0.3
    return out


def looked_up(x: Any) -> Any:
    out = _new(qd.empty, 3, np.float64)
    for i in qd.range(3):
        with jax.enable_x64(True):
            out[i] = jnp.asarray(TABLE)[i * 7] * x[i]
    return out


def complexes(x: Any) -> Any:
    out = _new(qd.full, 3, 0.1 + 0.2j, np.complex128)
    for i in qd.range(3):
        with jax.enable_x64(True):
            out[i] *= x[i]
    return out


def integers(x: Any) -> Any:
    out = _new(qd.zeros, 3, np.int64)
    with jax.enable_x64(True):
        stop = jnp.int64(3)
    for i in qd.range(stop):
        with jax.enable_x64(True):
            out[i] = jnp.int64(2) ** 40 + i
    return out


def _cells_by_numpy(x: Any) -> Any:
    x = x * 0.1
    while (on := x > 0.01).any():
        x = np.where(on, x * 0.3, x)
    return x


def _rows_by_numpy(x: Any) -> Any:
    out = np.zeros((3, 40))
    out[1], out[2, 1] = np.arange(40) * 0.1, x[0] * 0.1
    out[:, 0] = out[:, 1] * 0.3
    return out


BODIES: dict[Callable[[Any], Any], Callable[[Any], Any]] = {
    filled: lambda x: 0.1 + x * 0.1,
    like: lambda x: x * 0.1 + x[0] * 0.1,
    copied: lambda x: x * 0.1 * 0.3,
    numbers: lambda x: THIRDS[:3] + x + 0.1,
    cells: _cells_by_numpy,
    total: lambda x: (x * 0.1).sum(),
    around_tasks: lambda x: 0.1 * (x * 0.1) ** 3,
    conditional: lambda x: 0.1 + x * 0.1,
    between_loops: _rows_by_numpy,
    looked_up: lambda x: TABLE[[0, 7, 14]] * x,
    complexes: lambda x: (0.1 + 0.2j) * x,
    integers: lambda x: 2**40 + np.arange(3),
}
"""Bodies with what they compute."""
