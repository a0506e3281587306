"""A program with annotations: `assert_type` says what a type checker makes of it. Checked, and never run."""

# pyright: reportUnknownVariableType=true, reportUnknownArgumentType=true, reportUnknownParameterType=true
# pyright: reportUnknownLambdaType=true, reportMissingParameterType=true
# mypy: disallow-untyped-defs, disallow-incomplete-defs, disallow-untyped-calls

from collections.abc import Callable
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import numpy as np

import qdtrace as qd

X = jnp.arange(3.0)


def deposit(b: jax.Array, k: jax.Array, v: jax.Array) -> None:
    b[k] += v


@qd.jit
def buffers(x: jax.Array, n: jax.Array) -> tuple[jax.Array, jax.Array]:
    out = qd.empty(x.shape, x.dtype)
    assert_type(out, jax.Array)
    assert_type(qd.copy(x), jax.Array)
    total = jnp.sum(x[...]) + x.copy().max()
    for i in qd.range(x.shape[0]):
        assert_type(i, jax.Array)
        assert_type(x[i], jax.Array)
        assert_type(x[i] > 0, jax.Array)
        deposit(out, i, x[i] / total)
        assert_type(qd.atomic_add(n, i, 1), jax.Array)
        out.at[i].max(x[n[i]])
    for i, j in qd.ndrange(4, (1, x.shape[0])):
        assert_type(i, jax.Array)
        out[j] = i
    out += x
    return out, n


@qd.jit(options={"debug": True}, static_argnames="n")
def cells(x: jax.Array | np.ndarray, scale: float | jax.Array = 1.0, *, n: int) -> jax.Array:
    for i in qd.range(0, x.shape[0], n):
        k, row = qd.local(0), qd.local(jnp.zeros(3))
        k += 1
        assert_type(k, qd.Cell)
        assert_type(k.value, jax.Array)
        k.value = jnp.where(k % 2 == 0, k // 2, 3 * k + row[k])
        row[0] = -k * scale
        for j in qd.range(1, k.value, most=3):
            row[j] = 0.0
        for _ in qd.while_(lambda: k.value > 1, most=64):  # noqa: B023
            qd.break_if(k >= 10)
            qd.continue_if((k > 1) & (x[i] > 0))
        with qd.when(i > 1):
            x[i] = k
        with qd.otherwise():
            x[i] = row.sum()
        qd.check(k < 100, "never")
    return jnp.asarray(x)


def explicit(b: qd.Buffer) -> jax.Array:
    b += 1
    assert_type(b, qd.Buffer)
    assert_type(b.at[0].add(1), qd.Buffer)
    return b


@qd.dataclass(frozen=True)
class Ball:
    """A pytree."""

    x: jax.Array
    radius: float


class Model:
    @qd.jit
    def step(self, x: jax.Array, n: int = 1) -> jax.Array:
        return x


assert_type(buffers(X, X), tuple[jax.Array, jax.Array])
assert_type(cells(np.ones(3), n=1), jax.Array)
assert_type(cells.lower(X, n=1), qd.Lowered)
assert_type(Model().step(X, n=2), jax.Array)
assert_type(Model.step(Model(), X), jax.Array)
assert_type(Ball(X, radius=2.0).x, jax.Array)


def loss(x: jax.Array, k: float) -> jax.Array:
    return jnp.sum(x) * k


def with_aux(x: jax.Array) -> tuple[jax.Array, str]:
    return x, "aux"


jitted = qd.jit(loss, static_argnums=1)
assert_type(jitted(X, k=1.0), jax.Array)
assert_type(qd.jit(jitted)(X, 1.0), jax.Array)
assert_type(qd.vmap(loss, in_axes=(0, None))(X, 1.0), jax.Array)
assert_type(qd.vmap(qd.vmap(loss))(X, k=1.0), jax.Array)
assert_type(qd.value_and_grad(loss)(X, k=1.0), tuple[jax.Array, Any])
assert_type(qd.linearize(loss, X, 1.0), tuple[jax.Array, Callable[..., Any]])
assert_type(qd.vjp(loss, X, 1.0), tuple[jax.Array, Callable[..., Any]])
assert_type(qd.vjp(with_aux, X, has_aux=True), tuple[jax.Array, Callable[..., Any], str])
assert_type(qd.jvp(with_aux, (X,), (X,), has_aux=True), tuple[jax.Array, Any, str])
assert_type(qd.make_graph(loss)(X, 1.0), qd.Graph)
assert_type(qd.block_until_ready(X), jax.Array)
for derived in (qd.grad(loss), qd.jacfwd(loss), qd.jacrev(loss, argnums=(0, 1)), qd.hessian(loss)):
    derived(X, 1.0)
jax.grad(jitted)(X, 1.0)
with qd.options(fast_math=False):
    jax.jit(jax.vmap(jitted))(X, X)
