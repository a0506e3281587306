"""A variable set under a condition and read after it is refused, with the line and the fix."""

from __future__ import annotations

import numpy as np

import qdtrace as qd
from qdtrace.errors import TraceValueError
from qdtrace.trace.trace import trace_function
from tests.trace.text import clean

X = np.ones(8, np.float32)


def set_under_when(x):
    for i in qd.range(8):
        t = 0.0
        with qd.when(x[i] > 0):
            t = 1.0
        x[i] = t
    return x


def test_set_under_when(refusal) -> None:
    assert refusal(TraceValueError, set_under_when, X) == clean("""
        `t` is set under qd.when and read after it
          at FILE:5 in set_under_when
              x[i] = t
        note: the qd.when is at FILE:3 in set_under_when
        note: Python sets it whatever the condition is
        help: use jnp.where(condition, a, b), or keep it in a cell: `c = qd.local(start)` and `c.value = v`
    """)


def set_in_both(x):
    for i in qd.range(8):
        a, b = x[i], x[0]
        with qd.when(x[i] > 0):
            t = a
        with qd.otherwise():
            t = b
        x[i] = t
    return x


def item_under_when(x):
    for i in qd.range(8):
        parts = [1.0, 2.0]
        with qd.when(x[i] > 0):
            parts[0] = 3.0
        x[i] = parts[0]
    return x


def test_set_in_both_branches(refusal) -> None:
    assert refusal(TraceValueError, set_in_both, X).splitlines()[0] == "`t` is set under qd.otherwise and read after it"


def test_list_item_set_under_when(refusal) -> None:
    assert refusal(TraceValueError, item_under_when, X).splitlines()[0] == (
        "`parts[0]` is set under qd.when and read after it"
    )


class State:
    def __init__(self):
        self.v = 1.0


def hidden_by_a_later_one(x):
    state = State()
    for i in qd.range(8):
        with qd.when(x[i] > 0):
            state.v = 2.0
        with qd.when(x[i] > 1):
            state.v = 1.0
        x[i] = state.v
        state.v = 1.0
    return x


def missing_without(x):
    state = State()
    with qd.when(x[0] > 0):
        state.w = 1.0
    x[0] = state.w
    return x


def test_set_under_two_conditions(refusal) -> None:
    """With both left out, or none, the value is the same."""
    text = refusal(TraceValueError, hidden_by_a_later_one, X).splitlines()
    assert text[0] == "`state.v` is set under qd.when and read after it"
    assert text[1:4] == [
        "  at FILE:7 in hidden_by_a_later_one",
        "      x[i] = state.v",
        "note: the qd.when is at FILE:5 in hidden_by_a_later_one",
    ]


def test_only_set_under_a_condition(refusal) -> None:
    assert refusal(TraceValueError, missing_without, X) == clean("""
        `state.w` is set under qd.when and read after it
          at FILE:4 in missing_without
              x[0] = state.w
        note: the qd.when is at FILE:2 in missing_without
        note: Python sets it whatever the condition is
        note: without the qd.when the function raises AttributeError: 'State' object has no attribute 'w'
        help: use jnp.where(condition, a, b), or keep it in a cell: `c = qd.local(start)` and `c.value = v`
    """)


TRACED: list[int] = []


def traced_once(x):
    if TRACED:
        raise KeyError("a second trace")
    state = State()
    for i in qd.range(8):
        with qd.when(x[i] > 1):
            state.v = 2.0
        state.v = 1.0
        x[i] = state.v
    TRACED.append(1)
    return x


def test_a_function_that_cannot_be_traced_again(refusal) -> None:
    TRACED.clear()
    text = refusal(TraceValueError, traced_once, X)
    assert text.splitlines()[0] == "`state.v` is set inside the qd.range and read after it"
    assert (
        "note: whether that matters cannot be seen: traced again, the function raises KeyError: 'a second trace'"
        in text.splitlines()
    )
    TRACED.clear()


def never_twice(x):
    state = State()
    x[0] = np.random.random()
    for i in qd.range(1, 8):
        with qd.when(x[i] > 1):
            state.v = 2.0
        state.v = 1.0
        x[i] = state.v
    return x


def never_twice_and_wrong(x):
    state = State()
    x[0] = np.random.random()
    for i in qd.range(1, 8):
        state.v = 1.0
        with qd.when(x[i] > 1):
            state.v = 2.0
        x[i] = state.v
    return x


def test_a_function_that_is_never_the_same_twice(refusal) -> None:
    assert trace_function(never_twice, (X,)).root.items
    text = refusal(TraceValueError, never_twice_and_wrong, X)
    assert text.splitlines()[0] == "`state.v` is set under qd.when and read after it"
