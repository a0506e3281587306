# ruff: noqa: B023
"""`b[i] += v` is one accumulation; everything that only looks like it stays a load and a store."""

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
from tests.trace.text import task

X = np.ones(8, np.float32)
M = np.ones((4, 2), np.float32)
K = np.ones(4, np.int32)


ACCUMULATIONS = {
    "x[i] += 2.0": "accum add",
    "x[i] -= x[0]": "load\naccum add",
    "x[-1] += 1": "accum add",
    "m[i] += jnp.array([1.0, 2.0])": "accum add",
    "m[i, 1] += 1.0": "accum add",
    "m[i, 0:1] += 1.0": "accum add",
    "m[...] += 1.0": "accum add",
    "x[i + 1] += 1.0": "accum add",
    "k[i] += 1": "accum add",
    "x[i] += lax.cond(x[0] > 0, lambda: 1.0, lambda: 2.0)": "load\naccum add",
    "x[i] += qd.atomic_add(m, (i, 0), 1.0)": "atomic add\naccum add",
    "x[i] += 1.0\nx[i] += 2.0": "accum add\naccum add",
    "with qd.when(x[i] > 0):\n    x[i] += 1.0": "load\nwhen\n  accum add",
}


@pytest.mark.parametrize("body", ACCUMULATIONS)
def test_accumulates(tree, body) -> None:
    assert dedent(tree(task(body), X, M, K).split("for\n")[1]) == ACCUMULATIONS[body]


def test_accumulates_outside_of_loops(tree) -> None:
    def body(x):
        x[3] += 1.0

    assert tree(body, X) == "buffer\naccum add"


STORES = {
    "multiplied": "x[i] *= 2.0",
    "divided": "x[i] /= 2.0",
    "written out": "x[i] = x[i] + 2.0",
    "another place": "v = x[i]\nv += 1.0\nx[i + 1] = v",
    "another buffer": "v = x[i]\nv += 1.0\nm[i, 0] = v",
    "written between": "v = x[i]\nx[i] = 5.0\nv += 1.0\nx[i] = v",
    "written by a helper": "helper(x, i)\nv = x[i]\nhelper(x, i)\nv += 1.0\nx[i] = v",
    "written in control flow": "v = x[i]\nlax.cond(i > 3, store, lambda: 0)\nv += 1.0\nx[i] = v",
    "loaded outside": "v = x[i]\nfor _ in qd.range(3):\n    w = v\n    w += 1.0\n    x[i] = w",
    "changed twice": "v = x[i]\nv += 1.0\nv += 1.0\nx[i] = v",
    "a scaled sum": "v = x[i]\nv += 1.0\nx[i] = v * 2.0",
}
HELPERS = """
@jax.jit
def helper(b, i):
    b[i] = 5.0

def store():
    x[0] = 1.0
    return 0
"""


@pytest.mark.parametrize("name", STORES)
def test_stores(tree, name) -> None:
    lines = tree(task(STORES[name], HELPERS), X, M, K).split()
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


@pytest.mark.parametrize(("body", "neg"), [("x[i] -= x[0]", "  load\n  neg\n"), ("x[i] += 2.0", "")])
def test_a_negated_value_and_no_dead_load_or_sum(tree, body, neg) -> None:
    assert tree(task(body), X, M, K, full=True).split("for\n")[1] == f"{neg}  accum add"


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
