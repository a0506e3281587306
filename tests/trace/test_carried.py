# ruff: noqa: B023
"""Python state that a body carries is refused wherever it hides, and state that it does not carry is accepted."""

import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.errors import TraceValueError
from qdtrace.trace.trace import trace_function
from tests.trace.carried import Program, X, programs, sample

REFUSAL = re.compile(
    r"""(a\ value|`[^`]+`)\ (
        would\ carry\ a\ value\ from\ one\ iteration\ of\ the\ qd\.(range|ndrange|while_)\ to\ the\ next
        | made\ inside\ the\ qd\.(range|when|while_)\ is\ used\ outside\ of\ it
        | is\ set\ (inside\ the\ qd\.(range|ndrange|while_)|under\ qd\.(when|otherwise))\ and\ read\ after\ it
    )\n\ \ at\ <carried""",
    re.VERBOSE,
)


def check(program: Program) -> None:
    function = program.function()
    if program.expected is None:
        with pytest.raises(TraceValueError) as caught:
            trace_function(function, (X,))
        text = str(caught.value)
        assert REFUSAL.match(text), f"{program.name}: {text}\n{program.source}"
        assert "\nhelp: " in text
    else:
        got = np.asarray(qd.jit(function, options={"debug": True})(X))
        np.testing.assert_allclose(got, program.expected, rtol=1e-6, err_msg=program.source)


@pytest.mark.parametrize("program", sample(20, seed=1), ids=lambda p: p.name)
def test_state_in_random_places(program: Program) -> None:
    check(program)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(16))
def test_state_in_all_places(part: int) -> None:
    for program in list(programs())[part::16]:
        check(program)


class Stream:
    def __init__(self) -> None:
        self.key = jax.random.key(0)

    def __call__(self, v):
        self.key, sub = jax.random.split(self.key)
        return v + jax.random.uniform(sub)


class Module:
    """Keeps its last value, which it does not read."""

    def __call__(self, v):
        self.last = v * 2
        return self.last + 1


@pytest.mark.full
def test_state_of_a_mapped_function() -> None:
    with pytest.raises(TraceValueError, match=r"^`f.key` would carry a value"):
        qd.vmap(Stream())(X)
    assert np.array_equal(qd.vmap(Module())(X), X * 2 + 1)
    keys = qd.vmap(lambda i: (LOG.append(1), jax.random.fold_in(jax.random.key(0), i))[1])(np.arange(4))
    assert np.array_equal(
        jax.random.key_data(keys),
        jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(jax.random.key(0), i))(np.arange(4))),
    )


LOG: list[int] = []


def in_a_scan(x):
    for i in qd.range(8):

        def step(k, c):
            s = types.SimpleNamespace(v=1.0)
            with qd.when(c > 3):
                s.v = 2.0
            return c + s.v

        x[i] = lax.fori_loop(0, 3, step, x[i])
    return x


def in_a_branch(x):
    for i in qd.range(8):
        s = types.SimpleNamespace(v=1.0)

        def up(v):
            with qd.when(v > 5):
                s.v = x[0] * 0 + 2.0
                s.v = 2.0
            return v * s.v

        x[i] = lax.cond(x[i] > 3, up, lambda v: v, x[i])
    return x


def in_a_scan_and_back(x):
    for i in qd.range(8):

        def step(k, c):
            s = types.SimpleNamespace(v=1.0)
            with qd.when(c > x[0] + 3):
                s.v = 2.0
            s.v = 1.0
            return c + s.v

        x[i] = lax.fori_loop(0, 3, step, x[i])
    return x


def in_a_cached_helper(x):
    s = types.SimpleNamespace(v=1.0)

    @jax.jit
    def grow(v):
        s.v += 1
        return v * s.v

    for i in qd.range(8):
        x[i] = grow(x[i])
    return x


def set_in_a_cached_helper(x):
    @jax.jit
    def grow(v):
        s = types.SimpleNamespace(v=1.0)
        with qd.when(v > 3):
            s.v = 2.0
        return v * s.v

    for i in qd.range(8):
        x[i] = grow(x[i])
    return x


def tables_on_demand(x):
    tables = {}

    def table():
        if "t" not in tables:
            tables["t"] = np.ones(3, np.float32)
        return tables["t"]

    for i in qd.range(8):
        x[i] = lax.fori_loop(0, 1, lambda k, c: c + jnp.asarray(table())[k], x[i])
    return x


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (in_a_scan, "`s.v` is set under qd.when and read after it"),
        (in_a_branch, "`s.v` is set under qd.when and read after it"),
        (in_a_cached_helper, "`s.v` would carry a value from one iteration of the qd.range to the next"),
        (set_in_a_cached_helper, "`s.v` is set under qd.when and read after it"),
    ],
)
def test_state_in_functions_that_jax_traces(refusal, function, text) -> None:
    assert refusal(TraceValueError, function, X).splitlines()[0] == text


def test_clean_functions_that_jax_traces() -> None:
    for function, expected in [(in_a_scan_and_back, X + 3), (tables_on_demand, X + 1)]:
        assert np.array_equal(qd.jit(function, options={"debug": True})(X), expected)


def test_a_condition_at_the_end_of_an_except_clause() -> None:
    """Python 3.13 has the end of the clause twice: behind the block, and where `__exit__` swallows an exception."""

    @qd.jit
    def f(x: jax.Array) -> jax.Array:
        for i in qd.range(x.shape[0]):
            try:
                raise KeyError
            except KeyError:
                with qd.when(x[i] > 3):
                    x[i] = x[i] + 1
        return x

    assert f(X).tolist() == [v + (v > 3) for v in X.tolist()]
