"""Mistakes that a type checker finds: each has a mark for what mypy and pyright say, and a mark for nothing is an error
of theirs. Checked, and never run."""

import jax
import jax.numpy as jnp

import qdtrace as qd

X = jnp.arange(3.0)


@qd.jit
def f(x: jax.Array, k: float = 1.0) -> jax.Array:
    for i in qd.range((0, 4)):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        x[i] = 0
    for i in qd.range(4, most=x.shape[0] / 2):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        x[i] = 0
    for i in qd.range(x.shape[0] / 2):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        x[i] = 0
    c = qd.local(2)
    c.vlaue = 2  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    x[0] = c.val  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    x[0] = x.shpe[0]  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
    qd.zeros(2.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    qd.zeros("f4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    qd.atomic_add(3, 2, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with qd.when("c"):  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        x[0] = 1
    return x


def explicit(b: qd.Buffer) -> jax.Array:
    return b.at[0].mull(3)  # type: ignore[attr-defined, no-any-return]  # pyright: ignore[reportAttributeAccessIssue]


f(X, 1.0, 2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
f([1.0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
f()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
f(X, kk=1.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
f(X).vlaue()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
qd.atomic_sub(X, 0, 1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
qd.grad(f)(X, 1.0, 2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
qd.vmap(f).lower(X)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
qd.vmap(f)(X).vlaue()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
qd.vmap(f)([1.0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
qd.vmap(f)(X, kk=1.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
qd.jit(f, static_argnum=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
qd.jit(3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
qd.while_(True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
