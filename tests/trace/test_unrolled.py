"""A loop of Python that stores element by element outside of every `qd.range` is warned of, from 100 elements on."""

import linecache
import warnings
from typing import Any

import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace.trace import trace_function
from tests.written import written

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


def set_one(x, i):
    x[i] = 2.0


LOOPS = {
    "for i in range(x.shape[0]):\n    x[i] = 2.0": "for i in qd.range(x.shape[0]):`",
    "for i in range(5, 105):\n    x[i - 5] += 2.0": "for i in qd.range(5",
    "for i in range(100):\n    x.at[i].max(2.0)": "for i in qd.range(100):`",
    "for i in range(100):\n    set_one(x, i)": "for i in qd.range(100):`",
    "for i in range(10):\n    for j in range(10):\n        m[i, j] = 2.0": "for j in qd.range(10):`",
}


@pytest.mark.parametrize("body", LOOPS)
def test_a_loop_is_told_of_once(body: str) -> None:
    line = body.splitlines()[-2].strip()
    assert told(written(body, "x, m", set_one=set_one), X, M) == [f"{line} write `{LOOPS[body]}"]


def test_each_store_of_a_loop_is_one_warning_at_most() -> None:
    assert len(told(written("for i in range(100):\n    x[i] = 2.0\n    x[i] *= 2.0"), X)) == 1


OTHERS = {
    "fewer": "for i in range(99):\n    x[i] = 2.0\nreturn x",
    "in iterations": "for i in qd.range(x.shape[0]):\n    for k in range(120):\n        x[i] = x[i] + k\nreturn x",
    "in a lane": (
        "def lane(v):\n    row = qd.local(jnp.zeros(4))\n    for k in range(120):\n        row[k % 4] += v\n"
        "    return row\nreturn qd.vmap(lane)(x)"
    ),
    "around loops": "for t in range(120):\n    for i in qd.range(x.shape[0]):\n        x[i] = x[i] + t\nreturn x",
    "of one element": "for t in range(120):\n    x[t % 2] += t\nreturn x",
    "at traced places": "k = jnp.arange(120) % 7\nfor t in range(120):\n    x[k[t]] += t\nreturn x",
    "of whole arrays": "for t in range(120):\n    x[...] = x[...] + t\nreturn x",
    "of values": "y = jnp.zeros(120)\nfor t in range(120):\n    y = y.at[t].set(t)\nreturn y",
    "of other sequences": "for i in [k % 7 for k in range(120)]:\n    x[i] = 2.0\nreturn x",
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_loops_are_not_told_of(name: str) -> None:
    assert told(written(OTHERS[name]), X) == []
