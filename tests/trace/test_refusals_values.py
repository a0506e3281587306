# ruff: noqa: E501
"""JAX transformations, values, arguments and results: refusals that `tests/mistakes` does not have, with their text."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import GradientError, TraceTypeError, TraceValueError, UnsupportedError

M = np.ones((4, 3), np.float32)
X = np.ones(8, np.float32)


def vmap_of_a_store(x):
    def store(v):
        x[0] = v
        return v

    return jax.vmap(store)(jnp.ones(3))


def vmap_of_an_accumulation(x):
    def store(v):
        x[0] += v
        return v

    return jax.vmap(store)(jnp.ones(3))


def vmap_of_a_loop(x):
    def loop(n):
        for i in qd.range(n):
            x[i] = 1
        return n

    return jax.vmap(loop)(jnp.arange(3))


def grad_of_a_store(x):
    def store(v):
        x[0] = v
        return v

    return jax.grad(store)(1.0)


def grad_of_a_cell(x):
    for i in qd.range(8):

        def f(v):
            c = qd.local(0.0)
            c.value = v
            return c.value

        x[i] = jax.grad(f)(x[i])


def store_in_custom_root(x):
    def f(v):
        x[0] = 1.0
        return v * 2

    return lax.custom_linear_solve(f, jnp.ones(3), lambda mv, b: b / 2)


def shapes_of_where(x, m):
    for i in qd.range(4):
        x[i] = jnp.where(m[i] > 0, m[i], jnp.ones(2))[0]


def shapes_of_add(m):
    for i in qd.range(4):
        m[i] = m[i] + jnp.ones(2)


def store_into_a_value(m):
    for i in qd.range(4):
        row = m[i]
        row[0] = 1.0


def types_of_cond(x):
    for i in qd.range(8):
        x[i] = lax.cond(x[i] > 0, lambda: 1.0, lambda: 1)


CASES = [
    (vmap_of_a_store, UnsupportedError, (X,), """
`b[i] = v` inside jax.vmap needs operands without a batch axis
  at FILE:2 in store
      x[0] = v
help: write the batch as a loop: `for k in qd.range(n):`, or apply jax.vmap to the whole qd.jit function
"""),
    (vmap_of_an_accumulation, UnsupportedError, (X,), """
`b[i] += v` inside jax.vmap needs operands without a batch axis
  at FILE:2 in store
      x[0] += v
help: write the batch as a loop: `for k in qd.range(n):`, or apply jax.vmap to the whole qd.jit function
"""),
    (vmap_of_a_loop, UnsupportedError, (X,), """
qd.range inside jax.vmap needs operands without a batch axis
  at FILE:2 in loop
      for i in qd.range(n):
help: write the batch as a loop: `for k in qd.range(n):`, or apply jax.vmap to the whole qd.jit function
"""),
    (grad_of_a_store, GradientError, (X,), """
`b[i] = v` cannot be differentiated by jax.grad or jax.jvp inside a traced function
  at FILE:2 in store
      x[0] = v
help: differentiate a pure function there (values in, values out), or apply jax.grad to the whole qd.jit function
"""),
    (grad_of_a_cell, GradientError, (X,), """
storing into a qd.local cannot be differentiated by jax.grad or jax.jvp inside a traced function
  at FILE:5 in f
      c.value = v
help: differentiate a pure function there (values in, values out), or apply jax.grad to the whole qd.jit function
"""),
    (store_in_custom_root, UnsupportedError, (X,), """
`custom_linear_solve` cannot hold loops or stores of this package
  at FILE:5 in store_in_custom_root
      return lax.custom_linear_solve(f, jnp.ones(3), lambda mv, b: b / 2)
help: use lax.cond, lax.while_loop, lax.fori_loop or lax.scan, or qd.range and qd.when
"""),
    (shapes_of_where, TraceValueError, (X, M,), """
Incompatible shapes for broadcasting: shapes=[(3,), (3,), (2,)]
  at FILE:2 in shapes_of_where
      x[i] = jnp.where(m[i] > 0, m[i], jnp.ones(2))[0]
help: give both one shape, or an axis of length 1 where one is to be repeated: `a[:, None]`
"""),
    (shapes_of_add, TraceTypeError, (M,), """
add got incompatible shapes for broadcasting: (3,), (2,).
  at FILE:2 in shapes_of_add
      m[i] = m[i] + jnp.ones(2)
help: give both one shape, or an axis of length 1 where one is to be repeated: `a[:, None]`
"""),
    (store_into_a_value, TraceTypeError, (M,), """
a store needs a buffer or a cell, got a value
  at FILE:3 in store_into_a_value
      row[0] = 1.0
help: `m[i]` is a copy, no view: store into `m` itself, with its own indices; or, where `m` shall stay as it is, make it memory of one iteration, `row = qd.local(row)`; or make a new value: `row = row.at[0].set(v)`
"""),
    (types_of_cond, TraceTypeError, (X,), """
cond branches must have equal output types but they differ.
  at FILE:2 in types_of_cond
      x[i] = lax.cond(x[i] > 0, lambda: 1.0, lambda: 1)
note: true_fun is <lambda> at FILE:2
note: false_fun is <lambda> at FILE:2
note: The output of true_fun has type float32[] but the corresponding output of false_fun has type int32[], so the dtypes do not match.
note: Revise true_fun and/or false_fun so that all output types match.
"""),
]  # fmt: skip


@pytest.mark.parametrize(("function", "kind", "args", "expected"), CASES, ids=lambda v: getattr(v, "__name__", ""))
def test_refused(refusal, function, kind, args, expected) -> None:
    assert refusal(kind, function, *args) == expected.strip("\n")
