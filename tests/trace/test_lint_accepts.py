# ruff: noqa: B023, UP028
"""Ordinary code that resembles a trap is not refused."""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.trace.trace import trace_function
from qdtrace.trace.tree import equations_in

X = np.ones(8, np.float32)


def names_used_again(x):
    for i in qd.range(8):
        t = x[i]
        for k in range(3):
            t = t + k
        x[i] = t
    for i in qd.range(8):
        for k in range(3):
            t = x[i] * k
            x[i] = t
    for step in range(2):
        for i in qd.range(8):
            u = x[i] + step
            x[i] = u
    return x


def static_branches(x, flag):
    for i in qd.range(8):
        if flag == 1:
            v = x[i]
        elif flag == 2:
            v = x[0]
        x[i] = v
    for i in qd.range(8):
        if flag == 1:
            v = x[i]
        elif flag == 2:
            v = x[1]
        x[i] = v
    return x


def static_jumps(x):
    for i in qd.range(8):
        for k in range(4):
            if k == 1:
                continue
            if k == 3:
                break
            with qd.when(x[i] > k):
                x[i] = k
                for m in range(3):
                    if m:
                        continue
                    x[i] = m
        if X.size == 9:
            continue
        with qd.when(x[i] > 1):
            x[i] = 3
    return x


def accumulators(x):
    for i in qd.range(8):
        total = jnp.zeros(2)
        best = None
        for k in range(4):
            total += jnp.array([x[i], k])
            best = total if best is None else jnp.maximum(best, total)
        c = qd.local(0.0)
        for j in qd.range(8):
            c += x[j]
            c.value = c.value * 2
        x[i] = best[0] + c
    return x


def helper_functions(x):
    for i in qd.range(8):

        def f(z, scale=2.0):
            return jnp.sin(z) * scale + x[i]

        values = [f(x[k]) for k in range(3)]
        a, *rest = values
        named = {"a": a, "rest": rest}
        x[i] = jax.grad(f)(x[i]) + sum(named["rest"]) + named["a"]
    return x


def conditions(x):
    for i in qd.range(8):
        with qd.when(x[i] > 0):
            t = x[i] + 1
            x[i] = t
        with qd.otherwise():
            t = x[i] - 1
            x[i] = t
        with qd.when(x[i] > 3), qd.when(x[i] < 9):
            x[i] = 0
    return x


def captured_under_a_condition(x):
    for i in qd.range(4):
        with qd.when(x[i] > 0.5):
            c = qd.local(x[i])
            for _ in qd.while_(lambda: c.value < 3.0):
                c.value = c.value + 1
            x[i] = c.value
        x[i] = jnp.sin(x[i])
    for i in qd.range(4):
        x[i] = jnp.sin(x[i])
        c = qd.local(x[i])
        for _ in qd.while_(lambda: c.value < 3.0):
            c.value = c.value + 1
        x[i] = c.value
    return x


def static_values_in_branches(x, flag):
    for k in range(2):
        for i in qd.range(8):
            if flag == 1:
                v = 2.0 + k
            elif flag == 2:
                v = 3.0 + k
            x[i] = v
            with qd.when(x[i] > 1):
                if flag:
                    w = k + 1.0
                x[i] = w
            if flag:
                w = k - 1.0
            x[i] = w
    return x


class Simulation:
    """Keeps what it computed in its attributes, and its tables once they were made."""

    def __init__(self):
        self.tables = {}
        self.notes = []
        self.calls = 0

    def table(self, n):
        if n not in self.tables:
            self.tables[n] = np.arange(n, dtype=np.float32)
        return self.tables[n]

    @functools.cached_property
    def scale(self):
        return 2.0

    def step(self, v):
        self.speed = v * self.scale
        self.calls += 1
        self.notes.append(f"step {v.dtype}")
        return self.speed + jnp.asarray(self.table(4))[0]


def objects_as_scratch(x, simulation=Simulation()):  # noqa: B008
    for i in qd.range(8):
        x[i] = simulation.step(x[i])
        with qd.when(x[i] > 3):
            x[i] = simulation.step(x[i])
    for i in rows(8):
        x[i] = simulation.step(x[i])
    return x


def rows(n):
    for i in qd.range(n):
        yield i


def last_statement_continue(x):
    for i in qd.range(8):
        with qd.when(x[i] > 0):
            x[i] = 1
            continue
    return x


def through_generators(x):
    def rows():
        for i in qd.range(8):
            yield i, x[i]

    for i, v in rows():
        x[i] = v + 1
    return x


def sign_flips_back(x):
    sign = 1
    for i in qd.range(8):
        for k in range(2):
            x[i] = sign * x[k]
            sign = -sign
    return x


def comprehension_names(x):
    j = 5
    for i in qd.range(8):
        x[i] = sum([x[j] for j in range(3)])
        for j in range(2):
            x[i] = j
    return x


@pytest.mark.parametrize(
    ("function", "args"),
    [
        (names_used_again, ()),
        (static_branches, (1,)),
        (static_branches, (2,)),
        (static_values_in_branches, (1,)),
        (static_values_in_branches, (2,)),
        (static_jumps, ()),
        (accumulators, ()),
        (helper_functions, ()),
        (conditions, ()),
        (captured_under_a_condition, ()),
        (objects_as_scratch, ()),
        (last_statement_continue, ()),
        (through_generators, ()),
        (sign_flips_back, ()),
        (comprehension_names, ()),
    ],
)
def test_ordinary_code_is_accepted(function, args) -> None:
    static = range(1, 1 + len(args))
    traced = trace_function(function, (X, *args), static_argnums=tuple(static))
    assert any(eqn.primitive.name == "qd_store" for eqn in equations_in(traced.root.items))


def test_bodies_change_objects_once() -> None:
    """Traces for comparison put back what they change."""
    simulation = Simulation()
    trace_function(objects_as_scratch, (X, simulation), static_argnums=(1,))
    assert simulation.calls == 3
    assert simulation.notes == ["step float32"] * 3
    assert list(simulation.tables) == [4]


def test_a_debugger_stays_attached() -> None:
    """The block of a condition is left out by means that debuggers use as well."""

    def body(x):
        for i in qd.range(8):
            s = types.SimpleNamespace(v=1.0)
            with qd.when(x[i] > 1):
                s.v = 2.0
            s.v = 1.0
            x[i] = s.v
        return x

    def debugger(*_):
        return None

    attached = sys.gettrace()
    sys.settrace(debugger)
    try:
        traced = trace_function(body, (X,))
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(attached)
    assert traced.root.items


def broken(*_):
    raise RuntimeError("no such instruction set")


@pytest.mark.parametrize(
    "where",
    [
        "qdtrace.trace.diagnosis.lint.code_map",
        "qdtrace.trace.diagnosis.frames.code_map",
        "qdtrace.trace.diagnosis.frames.Variables.rebound",
        "qdtrace.trace.diagnosis.state.State.begin",
        "qdtrace.trace.diagnosis.state.State.end",
    ],
)
def test_a_failing_diagnosis_does_not_break_a_trace(monkeypatch, where) -> None:
    monkeypatch.setattr(where, broken)
    for function in (names_used_again, conditions):
        assert trace_function(function, (X,)).root.items
