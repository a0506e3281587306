"""A loop of Python that stores element by element outside of every `qd.range` is warned of, from 100 elements on."""

from __future__ import annotations

import linecache
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace.trace import trace_function

X = np.ones(100, np.float32)
M = np.ones((10, 10), np.float32)


def told(f: Any, *args: Any) -> list[str]:
    """The lines that are warned of, with the fix."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trace_function(f, args)
    assert all(w.category is qd.QdWarning for w in caught)
    return [
        f"{linecache.getline(w.filename, w.lineno).strip()} {str(w.message).split('help: ')[1].split(',')[0]}"
        for w in caught
    ]


def stored(x):
    for i in range(x.shape[0]):
        x[i] = 2.0
    return x


def added(x):
    for i in range(5, 105):
        x[i - 5] += 2.0
    return x


def accumulated(x):
    for i in range(100):
        x.at[i].max(2.0)
    return x


def set_one(x, i):
    x[i] = 2.0


def by_a_helper(x):
    for i in range(100):
        set_one(x, i)
    return x


def nested(m):
    for i in range(10):
        for j in range(10):
            m[i, j] = 2.0
    return m


def in_two_places(x):
    for i in range(100):
        x[i] = 2.0
        x[i] *= 2.0
    return x


@pytest.mark.parametrize(
    ("f", "x", "line", "fix"),
    [
        (stored, X, "for i in range(x.shape[0]):", "for i in qd.range(x.shape[0]):"),
        (added, X, "for i in range(5, 105):", "for i in qd.range(5"),
        (accumulated, X, "for i in range(100):", "for i in qd.range(100):"),
        (by_a_helper, X, "for i in range(100):", "for i in qd.range(100):"),
        (nested, M, "for j in range(10):", "for j in qd.range(10):"),
    ],
)
def test_a_loop_is_told_of_once(f: Any, x: Any, line: str, fix: str) -> None:
    assert told(f, x) == [f"{line} write `{fix}" + "`" * fix.endswith(":")]


def test_each_store_of_a_loop_is_one_warning_at_most() -> None:
    assert len(told(in_two_places, X)) == 1


def fewer(x):
    for i in range(99):
        x[i] = 2.0
    return x


def in_iterations(x):
    for i in qd.range(x.shape[0]):
        for k in range(120):
            x[i] = x[i] + k
    return x


def in_a_lane(x):
    def lane(v):
        row = qd.local(jnp.zeros(4))
        for k in range(120):
            row[k % 4] += v
        return row

    return qd.vmap(lane)(x)


def around_loops(x):
    for t in range(120):
        for i in qd.range(x.shape[0]):
            x[i] = x[i] + t
    return x


def of_one_element(x):
    for t in range(120):
        x[t % 2] += t
    return x


def at_traced_places(x):
    k = jnp.arange(120) % 7
    for t in range(120):
        x[k[t]] += t
    return x


def of_whole_arrays(x):
    for t in range(120):
        x[...] = x[...] + t
    return x


def of_values(x):
    y = jnp.zeros(120)
    for t in range(120):
        y = y.at[t].set(t)
    return y


def of_other_sequences(x):
    for i in [k % 7 for k in range(120)]:
        x[i] = 2.0
    return x


@pytest.mark.parametrize(
    "f", [
        fewer, in_iterations, in_a_lane, around_loops, of_one_element, at_traced_places, of_whole_arrays, of_values,
        of_other_sequences,
    ],
)
def test_other_loops_are_not_told_of(f: Any) -> None:
    assert told(f, X) == []
