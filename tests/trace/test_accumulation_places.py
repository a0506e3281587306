"""`b[k] += v` is one accumulation for every form of the index, through objects, and when v touches the buffer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.trace.trace import trace_function

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


def by_cell(x, m, k):
    for i in qd.range(4):
        c = qd.local(k[i])
        x[c] += 1.0
        m[c, 1] += 1.0
        m[c, c] -= x[c]


def by_narrow_cell(x, m, k):
    for i in qd.range(4):
        c = qd.local(k[i].astype(jnp.uint8))
        x[c] += 1.0


def by_element_of_cell(x, m, k):
    for i in qd.range(4):
        c = qd.local(jnp.stack([k[i], k[0]]))
        x[c[1]] += 1.0
        x[c[0] + 1] += 1.0


def by_buffer(x, m, k):
    n = qd.zeros((), jnp.int16)
    for _ in qd.range(4):
        x[n] += 1.0
        m[n, n] += 1.0


def by_buffer_outside(x, m, k):
    n = qd.zeros((), jnp.int16)
    x[n] += 1.0
    x[k[1]] -= 1.0


def by_numpy(x, m, k):
    place = (np.uint8(2), np.array(1, np.int16))
    for _ in qd.range(4):
        x[np.int8(-1)] += 1.0
        m[place] += 1.0
        m[np.uint64(1)] += 1.0


def by_constant(x, m, k):
    for _ in qd.range(4):
        x[jnp.uint8(3)] += 1.0
        x[jnp.int32(3)] += 1.0


def by_function(x, m, k):
    @jax.jit
    def place(i):
        return (i * 7 % 4).astype(jnp.uint8)

    for i in qd.range(4):
        x[place(i)] += 1.0


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


def through_object(x, m, k):
    grid = Grid(x)
    for i in qd.range(4):
        grid[k[i]] += 1.0
        grid[i] -= 2.0
        grid[2] += 1.0


def through_property(x, m, k):
    grid = Grid(x)
    for _ in qd.range(4):
        grid.first += 1.0


def through_object_that_counts(x, m, k):
    grid = Grid(x, qd.zeros((), jnp.float32))
    for i in qd.range(4):
        grid[k[i]] += 1.0


@pytest.mark.parametrize(
    "function",
    [
        by_cell,
        by_narrow_cell,
        by_element_of_cell,
        by_buffer,
        by_buffer_outside,
        by_numpy,
        by_constant,
        by_function,
        through_object,
        through_property,
        through_object_that_counts,
    ],
)
def test_every_form(tree, function) -> None:
    assert accumulates(tree(function, X, M, K.astype(np.int32)))


def value_reads(x, y):
    for i in qd.range(8):
        x[i] += x[7 - i] * 2.0


def value_adds(x, y):
    def value():
        x[3] += 1.0
        return 1.0

    for i in qd.range(8):
        x[i] += value()


def value_subtracts_by_method(x, y):
    def value():
        x.at[3].subtract(1.0)
        return x[0]

    for i in qd.range(8):
        x[i] -= value()


def value_exchanges(x, y):
    for i in qd.range(8):
        x[i] += qd.atomic_exchange(x, i, 0.0)


def value_in_helper(x, y):
    @jax.jit
    def helper(b, i):
        b[i] += 5.0
        return b[i]

    for i in qd.range(8):
        x[i] += helper(x, i)


def value_in_control_flow(x, y):
    def store():
        x[0] += 1.0
        return 0.0

    for i in qd.range(8):
        x[i] += lax.cond(i > 3, store, lambda: 0.0)


def value_under_condition(x, y):
    def value():
        with qd.when(y[0] > 0):
            x[2] += 1.0
        return 1.0

    for i in qd.range(8):
        x[i] += value()


def value_in_loop(x, y):
    def value():
        for j in qd.range(3):
            x[j] += 1.0
        return 1.0

    for i in qd.range(8):
        x[i] += value()


@pytest.mark.parametrize(
    "function",
    [
        value_reads,
        value_adds,
        value_subtracts_by_method,
        value_exchanges,
        value_in_helper,
        value_in_control_flow,
        value_under_condition,
        value_in_loop,
    ],
)
def test_value_that_touches_the_buffer(tree, function) -> None:
    text = tree(function, X, X)
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
