# ruff: noqa: B023
"""`b[i] += v` is one accumulation; everything that only looks like it stays a load and a store."""

from __future__ import annotations

from textwrap import dedent

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.trace.regions import restructure
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import equations_in
from tests.trace.text import clean

X = np.ones(8, np.float32)
M = np.ones((4, 2), np.float32)
K = np.ones(4, np.int32)


def add(x):
    for i in qd.range(8):
        x[i] += 2.0


def subtract(x):
    for i in qd.range(8):
        x[i] -= x[0]


def constant_index(x):
    for _ in qd.range(8):
        x[-1] += 1


def row(m):
    for i in qd.range(4):
        m[i] += jnp.array([1.0, 2.0])


def element_of_row(m):
    for i in qd.range(4):
        m[i, 1] += 1.0


def part_of_row(m):
    for i in qd.range(4):
        m[i, 0:1] += 1.0


def small_whole(m):
    for _ in qd.range(4):
        m[...] += 1.0


def outside_loops(x):
    x[3] += 1.0


def in_when(x):
    for i in qd.range(8):
        with qd.when(x[i] > 0):
            x[i] += 1.0


def computed_index(x):
    for i in qd.range(7):
        x[i + 1] += 1.0


def integer(k):
    for i in qd.range(4):
        k[i] += 1


def condition_between(x):
    for i in qd.range(8):
        x[i] += lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0)


def other_write_between(x):
    y = qd.zeros(8)
    for i in qd.range(8):
        x[i] += qd.atomic_add(y, i, 1.0)


def twice(x):
    for i in qd.range(8):
        x[i] += 1.0
        x[i] += 2.0


@pytest.mark.parametrize(
    ("function", "array", "expected"),
    [
        (add, X, "accum add"),
        (subtract, X, "load\naccum add"),
        (constant_index, X, "accum add"),
        (row, M, "accum add"),
        (element_of_row, M, "accum add"),
        (part_of_row, M, "accum add"),
        (small_whole, M, "accum add"),
        (computed_index, X, "accum add"),
        (integer, K, "accum add"),
        (condition_between, X, "load\naccum add"),
        (other_write_between, X, "atomic add\naccum add"),
        (twice, X, "accum add\naccum add"),
    ],
)
def test_accumulates(tree, function, array, expected) -> None:
    body = tree(function, array).split("for\n")[1]
    assert dedent(body) == expected


def test_accumulates_outside_of_loops(tree) -> None:
    assert tree(outside_loops, X) == "buffer\naccum add"


def test_accumulates_under_a_condition(tree) -> None:
    assert tree(in_when, X) == clean("""
        buffer
        for
          load
          when
            accum add
    """)


def multiply(x):
    for i in qd.range(8):
        x[i] *= 2.0


def divide(x):
    for i in qd.range(8):
        x[i] /= 2.0


def written_out(x):
    for i in qd.range(8):
        x[i] = x[i] + 2.0


def other_place(x):
    for i in qd.range(7):
        v = x[i]
        v += 1.0
        x[i + 1] = v


def other_buffer(x):
    y = qd.zeros(8)
    for i in qd.range(8):
        v = x[i]
        v += 1.0
        y[i] = v


def written_between(x):
    for i in qd.range(8):
        v = x[i]
        x[i] = 5.0
        v += 1.0
        x[i] = v


def written_by_helper(x):
    @jax.jit
    def helper(b, i):
        b[i] = 5.0

    for i in qd.range(8):
        helper(x, i)
        v = x[i]
        helper(x, i)
        v += 1.0
        x[i] = v


def written_in_control_flow(x):
    def store():
        x[0] = 1.0
        return 0

    for i in qd.range(8):
        v = x[i]
        lax.cond(i > 3, store, lambda: 0)
        v += 1.0
        x[i] = v


def outer_load(x):
    for i in qd.range(8):
        v = x[i]
        for _ in qd.range(3):
            w = v
            w += 1.0
            x[i] = w


def changed_twice(x):
    for i in qd.range(8):
        v = x[i]
        v += 1.0
        v += 1.0
        x[i] = v


def scaled_sum(x):
    for i in qd.range(8):
        v = x[i]
        v += 1.0
        x[i] = v * 2.0


@pytest.mark.parametrize(
    "function",
    [
        multiply,
        divide,
        written_out,
        other_place,
        other_buffer,
        written_between,
        written_by_helper,
        written_in_control_flow,
        outer_load,
        changed_twice,
        scaled_sum,
    ],
)
def test_stores(tree, function) -> None:
    lines = tree(function, X).split()
    assert "accum" not in lines
    assert lines[-1] == "store"


@pytest.mark.parametrize(
    ("method", "op"),
    [("add", "add"), ("subtract", "add"), ("min", "min"), ("max", "max"), ("mul", "mul"), ("multiply", "mul")],
)
def test_at_accumulates(tree, method, op) -> None:
    def body(x):
        for i in qd.range(8):
            x = getattr(x.at[i], method)(2.0)
        return x

    assert tree(body, X) == f"buffer\nfor\n  accum {op}\nread"


def test_at_set_stores_and_get_loads(tree) -> None:
    def body(x):
        for i in qd.range(8):
            x.at[i].set(x.at[0].get())

    assert tree(body, X) == "buffer\nfor\n  load\n  store"


def test_negated_value(tree) -> None:
    assert tree(subtract, X, full=True).splitlines() == ["buffer", "for", "  load", "  neg", "  accum add"]


def test_dead_load_and_sum_are_removed(tree) -> None:
    assert tree(add, X, full=True) == "buffer\nfor\n  accum add"


def test_a_loaded_value_is_a_jax_value() -> None:
    seen = {}

    def body(x):
        for i in qd.range(8):
            a = x[i]
            seen["tracer"] = isinstance(a, jax.core.Tracer)
            seen["array"] = isinstance(a, jax.Array)
            b = a
            b += 1
            seen["plain"] = type(b) is not type(a)
            y = lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + a, s[1]), (a, b))[0]
            z = lax.fori_loop(0, 3, lambda k, c: c + a, a)
            w, _ = lax.scan(lambda c, _: (c + a, None), a, None, length=3)
            u = lax.cond(a > 0, lambda t: t, lambda t: t + 1, a)
            v = (
                jax.grad(lambda t: t * a)(a)
                + jax.jit(lambda t: t * 2)(a)
                + jax.vmap(lambda t: t * a)(jnp.ones(2)).sum()
            )
            n = -a + abs(a) + 2.0 * a - 1 / a + a**2 + np.float32(2) * a + jnp.stack([a, b]).sum() + lax.sin(a)
            n = n + jax.checkpoint(jnp.sin)(a) + jax.vjp(jnp.sin, a)[1](b)[0] + a.astype(jnp.int32) + a.at[()].set(1.0)
            x[i] = y + z + w + u + v + n

    trace_function(body, (X,))
    assert seen == {"tracer": True, "array": True, "plain": True}


def one_buffer_as_two_inputs(x):
    def step(k, carry):
        a, b = carry
        v = a[0]
        b[0] = 5.0
        v += 1.0
        a[0] = v
        return carry

    lax.fori_loop(0, 3, step, (x, x))
    return x


def test_one_buffer_as_two_inputs_of_control_flow() -> None:
    traced = trace_function(one_buffer_as_two_inputs, (X,))
    (loop,) = (e for e in equations_in(traced.root.items) if e.primitive.name in ("scan", "while"))
    inner = restructure(loop.params["jaxpr"])
    assert [e.primitive.name for e in equations_in(inner.items) if e.primitive.name.startswith("qd_")] == [
        "qd_load",
        "qd_store",
        "qd_store",
    ]
