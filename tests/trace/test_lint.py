"""State that a loop carries, or a condition sets: refusals that are no blocks of `tests/mistakes`."""

import time

import numpy as np
import pytest

import qdtrace as qd
from qdtrace.errors import TraceValueError
from qdtrace.trace.trace import trace_function

X = np.ones(8, np.float32)


def drawn(x):
    for i in qd.range(8):
        x[i] = np.random.random()
    return x


def clocked(x):
    for i in qd.range(8):
        x[i] = time.perf_counter_ns() % 10_000_019
    return x


@pytest.mark.parametrize(("function", "name"), [(drawn, "np.random.random"), (clocked, "time.perf_counter_ns")])
def test_a_number_drawn_in_a_body(refusal, function, name) -> None:
    text = refusal(TraceValueError, function, X).splitlines()
    assert text[0] == f"`{name}` would carry a value from one iteration of the qd.range to the next"
    assert text[1] == f"  at FILE:2 in {function.__name__}"
    assert text[-1] == (
        "help: make it from the index: `jax.random.fold_in(key, i)` for a random key, `table[i]` for numbers made "
        "before the loop"
    )


@qd.dataclass
class Ray:
    pos: object
    steps: object


def attribute(x):
    for i in qd.range(8):
        ray = Ray(x[i], 0)
        for _ in qd.range(8):
            ray.pos = ray.pos + 1.0
        x[i] = 1
    return x


def test_an_attribute_of_a_dataclass(refusal) -> None:
    first, where, *_ = refusal(TraceValueError, attribute, X).splitlines()
    assert first == "`ray.pos` would carry a value from one iteration of the qd.range to the next"
    assert where.startswith("  at FILE:4 in attribute")


class State:
    def __init__(self):
        self.v = 1.0


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
