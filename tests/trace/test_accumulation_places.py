"""`b[k] += v` is one accumulation for every form of the index, through objects, and when v touches the buffer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.trace.trace import trace_function
from tests.trace.text import task

X = np.zeros(8, np.float32)
M = np.zeros((4, 2), np.float32)
K = np.arange(4)
INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


def accumulates(text: str) -> bool:
    """One accumulation a statement, and not one store into a buffer."""
    words = text.split()
    return "accum" in words and "store" not in words


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer(tree, dtype, wide) -> None:
    def f(x, m, k):
        for i in qd.range(4):
            x[k[i]] += 1.0
            x[k[i]] -= 1.0
            m[k[i], k[0]] += 1.0
            m[k[i]] += 1.0

    with jax.enable_x64(wide):
        text = tree(f, X, M, K.astype(dtype))
    assert text.split().count("accum") == 4
    assert accumulates(text)


class Grid:
    """Computes its index at each access."""

    def __init__(self, buffer, stored=None) -> None:
        self.buffer = buffer
        self.stored = stored
        self.name = "grid"

    def __getitem__(self, k):
        return self.buffer[k % 4 + 1]

    def __setitem__(self, k, value) -> None:
        if self.stored is not None:
            self.stored[()] += 1.0
        self.buffer[k % 4 + 1] = value

    @property
    def first(self):
        return self.buffer[0]

    @first.setter
    def first(self, value) -> None:
        self.buffer[0] = value


FORMS = {
    "a cell": ("", "c = qd.local(k[i])\nx[c] += 1.0\nm[c, 1] += 1.0\nm[c, c] -= x[c]"),
    "a narrow cell": ("", "c = qd.local(k[i].astype(jnp.uint8))\nx[c] += 1.0"),
    "an element of a cell": ("", "c = qd.local(jnp.stack([k[i], k[0]]))\nx[c[1]] += 1.0\nx[c[0] + 1] += 1.0"),
    "a buffer": ("n = qd.zeros((), jnp.int16)", "x[n] += 1.0\nm[n, n] += 1.0"),
    "a buffer, outside": ("n = qd.zeros((), jnp.int16)\nx[n] += 1.0\nx[k[1]] -= 1.0", "x[i] += 1.0"),
    "NumPy": ("", "x[np.int8(-1)] += 1.0\nm[np.uint8(2), np.array(1, np.int16)] += 1.0\nm[np.uint64(1)] += 1.0"),
    "a constant": ("", "x[jnp.uint8(3)] += 1.0\nx[jnp.int32(3)] += 1.0"),
    "a function": ("", "x[jax.jit(lambda i: (i * 7 % 4).astype(jnp.uint8))(i)] += 1.0"),
    "an object": ("grid = Grid(x)", "grid[k[i]] += 1.0\ngrid[i] -= 2.0\ngrid[2] += 1.0"),
    "a property": ("grid = Grid(x)", "grid.first += 1.0"),
    "an object that counts": ("grid = Grid(x, qd.zeros((), jnp.float32))", "grid[k[i]] += 1.0"),
}
"""Statements in front of a loop, and in it."""


@pytest.mark.parametrize("name", FORMS)
def test_every_form(tree, name) -> None:
    before, body = FORMS[name]
    assert accumulates(tree(task(body, before, Grid=Grid), X, M, K.astype(np.int32)))


VALUES = {
    "reads": "x[7 - i] * 2.0",
    "exchanges": "qd.atomic_exchange(x, i, 0.0)",
    "adds": "of(lambda: x.at[3].add(1.0))",
    "subtracts": "of(lambda: x.at[3].subtract(1.0)) + x[0]",
    "in a helper": "helper(x, i)",
    "in control flow": "lax.cond(i > 3, lambda: of(lambda: x.at[0].add(1.0)), lambda: 0.0)",
    "under a condition": "under_condition()",
    "in a loop": "in_loop()",
}
MADE = """
def of(change):
    change()
    return 1.0

@jax.jit
def helper(b, i):
    b[i] += 5.0
    return b[i]

def under_condition():
    with qd.when(k[0] > 0):
        x[2] += 1.0
    return 1.0

def in_loop():
    for j in qd.range(3):
        x[j] += 1.0
    return 1.0
"""


@pytest.mark.parametrize("name", VALUES)
def test_value_that_touches_the_buffer(tree, name) -> None:
    text = tree(task(f"x[i] += {VALUES[name]}", MADE), X, M, K.astype(np.int32))
    assert text.split()[-2:] == ["accum", "add"]
    assert accumulates(text)


def two_rows(m, c):
    class Steps:
        def __getitem__(self, k):
            return m[k, 0]

        def __setitem__(self, k, value) -> None:
            m[k, 1] = value

    steps = Steps()
    for i in qd.range(4):
        steps[i] += 1.0


def two_buffers(m, c):
    other = qd.zeros((4, 2), jnp.float32)

    class Steps:
        def __getitem__(self, k):
            return m[k, 0]

        def __setitem__(self, k, value) -> None:
            other[k, 0] = value

    steps = Steps()
    for i in qd.range(4):
        steps[i] += 1.0


def kept_in_list(m, c):
    for i in qd.range(4):
        kept = [m[i, 0]]
        m[i, 0] = 5.0
        kept[0] += 1.0
        m[i, 0] = kept[0]


@pytest.mark.parametrize("function", [two_rows, two_buffers, kept_in_list])
def test_stores(tree, function) -> None:
    words = tree(function, M, K).split()
    assert "accum" not in words
    assert words[-1] == "store"


def test_a_flag_in_a_variable_is_a_value(tree) -> None:
    def f(flags, out):
        for i in qd.range(4):
            v = flags[i]
            v += 1
            out[i] = v

    assert tree(f, np.zeros(4, bool), np.zeros(4, np.int32)).split()[-1] == "store"


@pytest.mark.usefixtures("young_heap")
def test_nothing_is_kept_of_inner_traces() -> None:
    """`jax.checking_leaks` finds tracers that outlive their trace."""

    def f(x):
        def step(k, c):
            v = x[k]
            v += 1.0
            x[k] += v
            return c + v

        for i in qd.range(8):
            x[i] += lax.fori_loop(0, 3, step, 0.0)

    with jax.checking_leaks():
        trace_function(f, (X,))
