"""Cells and buffers that one assignment changes and stores: `a.value, b.value = b, a`."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.written import written

X = np.array([1.0, 2.0, 3.0], np.float32)
CELLS = """out = qd.zeros(3)
for i in qd.range(1):
    a, b, c = [qd.local(x[k]) for k in range(3)]
    {}
    out[0], out[1], out[2] = a, b, c
return out"""
TREES = """out = qd.zeros(3)
for i in qd.range(1):
    s, t = qd.local(Pair(x[0], x[1])), qd.local(Pair(x[2], 0.0))
    c = qd.local(x[2])
    {}
    out[0], out[1], out[2] = s.a, t.a, c
return out"""
BUFFERS = "y, z = qd.copy(x), x * 2\nz = qd.copy(z)\n{}\nreturn y, z"


class Pair(NamedTuple):
    a: Any
    b: Any


REFUSED = {
    "a.value, b.value = b, a": (CELLS, ".value"),
    "a.value, b.value, c.value = b, c, a": (CELLS, ".value"),
    "(a.value, b.value), c.value = (b, c), a": (CELLS, ".value"),
    "[a.value, b.value] = [a + 1, a]": (CELLS, ".value"),
    "pair = b, a; a.value, b.value = pair": (CELLS, ".value"),
    "s.value, t.value = t, s": (TREES, ".value"),
    "c.value, s.a = s.b, c": (TREES, ".value"),
    "c.value, t.value = s.b, Pair(c, s.a)": (TREES, ".value"),
    "y[...], z[...] = z, y": (BUFFERS, "[...]"),
}
RIGHT = {
    "a.value, b.value = b.value, a.value": [2, 1, 3],
    "a.value, b.value = b + 0, a + 0": [2, 1, 3],
    "a.value, b.value = b, a.value": [2, 1, 3],
    "a.value, b.value = b, c": [2, 3, 3],
    "a.value, b.value = a, b": [1, 2, 3],
    "a.value = b; b.value = a": [2, 2, 3],
    "a.value = b.value = c": [3, 3, 3],
    "a.value += 1; b.value, c.value = a, b.value": [2, 2, 2],
    "for u, v in ((a, b), (c, a)): u.value, v.value = v, u + 0": [3, 1, 2],
}


@pytest.mark.parametrize("statement", REFUSED)
def test_a_swap_of_handles_is_refused(statement):
    program, keep = REFUSED[statement]
    with pytest.raises(qd.TraceValueError, match="this assignment changes a ") as caught:
        qd.jit(written(program.format(statement), Pair=Pair))(X)
    assert statement.split("; ")[-1] in str(caught.value)
    assert f"write `{keep}` behind each" in str(caught.value)


@pytest.mark.parametrize("statement", RIGHT)
def test_other_assignments_keep_their_meaning(statement):
    assert qd.jit(written(CELLS.format(statement)))(X).tolist() == RIGHT[statement]


def test_the_help_of_buffers_swaps_them():
    y, z = qd.jit(written(BUFFERS.format("y[...], z[...] = z[...], y[...]")))(X)
    np.testing.assert_array_equal(jnp.stack([y, z]), [2 * X, X])


def test_each_call_of_a_function_is_a_statement_of_its_own():
    def swap(u: Any, v: Any, w: Any) -> None:
        u.value, v.value = w, w + 1

    @qd.jit
    def moved(x):
        out = qd.zeros(3)
        for _ in qd.range(1):
            a, b, c = [qd.local(x[k]) for k in range(3)]
            swap(a, b, c)
            swap(c, b, a)
            out[0], out[1], out[2] = a, b, c
        return out

    assert moved(X).tolist() == [3, 4, 3]
