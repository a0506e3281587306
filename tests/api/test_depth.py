"""Deep programs: a result, or an error of ours that says how to get one."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests import fresh
from tests.api.messages import good, text_of

X = np.arange(8, dtype=np.float32)
ROOT = Path(__file__).parents[2]
TOO_DEEP = 400


def conditions(x, depth):
    for i in qd.range(8):
        with contextlib.ExitStack() as stack:
            for k in range(depth):
                stack.enter_context(qd.when(x[i] > k))
                x[i] += 1
    return x


def conditions_outside(x, depth):
    with contextlib.ExitStack() as stack:
        for k in range(depth):
            stack.enter_context(qd.when(x[0] > k))
            x[0] += 1
    return x


def loops(x, depth):
    def nest(k, i):
        if k == 0:
            x[i] += 1
            return
        for _ in qd.range(1):
            nest(k - 1, i)

    for i in qd.range(8):
        nest(depth, i)
    return x


def lax_conditions(x, depth):
    def nest(k, v):
        return v if k == 0 else lax.cond(v > k, lambda: nest(k - 1, v + 1), lambda: v)

    for i in qd.range(8):
        x[i] = nest(depth, x[i])
    return x


def helpers(x, depth):
    f = lambda v: v  # noqa: E731
    for _ in range(depth):
        f = jax.jit(lambda v, f=f: f(v) + 1)
    for i in qd.range(8):
        x[i] = f(x[i])
    return x


PROGRAMS = {
    conditions: "stack.enter_context(qd.when(x[i] > k))",
    conditions_outside: "stack.enter_context(qd.when(x[0] > k))",
    loops: "for _ in qd.range(1):",
    lax_conditions: "return v if k == 0 else lax.cond(v > k, lambda: nest(k - 1, v + 1), lambda: v)",
    helpers: "f = jax.jit(lambda v, f=f: f(v) + 1)",
}


@pytest.mark.sample(full=4)
@pytest.mark.full
@pytest.mark.parametrize("how", ["call", "lower", "jax.jit"])
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_too_deep(function: Any, how: str) -> None:
    f = qd.jit(function, static_argnums=1)
    run = {
        "call": lambda: f(X, TOO_DEEP),
        "lower": lambda: f.lower(X, TOO_DEEP).as_text("asm"),
        "jax.jit": lambda: jax.jit(lambda x: f(x, TOO_DEEP))(X),
    }[how]
    with pytest.raises(qd.UnsupportedError) as caught:
        run()
    assert caught.value.rule == (
        f"{function.__name__}: loops, conditions and calls nest deeper than Python's recursion limit of "
        f"{sys.getrecursionlimit()} lets them be walked"
    )
    assert caught.value.help == (
        "join conditions, `qd.when(a & b)`, or raise the limit before the call: `sys.setrecursionlimit(20_000)`"
    )
    assert f"\n      {PROGRAMS[function]}\n" in str(caught.value)
    np.testing.assert_array_equal(qd.jit(good)(X), X + 1)


@pytest.mark.full
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda f: f.__name__)
def test_deep(function: Any) -> None:
    """What fits is computed."""
    want = {
        conditions: X + 61 * (X > 0) - (X > 0),
        conditions_outside: X,
        loops: X + 1,
        lax_conditions: X,
        helpers: X + 60,
    }[function]
    np.testing.assert_array_equal(qd.jit(function, static_argnums=1)(X, 60), want)


def test_the_help_helps() -> None:
    program = (
        "import sys; sys.setrecursionlimit(20_000)\n"
        "import numpy as np, qdtrace as qd\n"
        "from tests.api.test_depth import TOO_DEEP, X, loops\n"
        "np.testing.assert_array_equal(qd.jit(loops, static_argnums=1)(X, TOO_DEEP), X + 1)\n"
    )
    fresh.run([sys.executable, "-c", program], cwd=ROOT, env=dict(os.environ), check=True)


def endless(x):
    return endless(x)


def test_endless_recursion_of_the_user() -> None:
    with pytest.raises(qd.UnsupportedError) as caught:
        qd.jit(endless)(X)
    assert text_of(caught.value, endless) == (
        "endless: a function calls itself without end while it is traced\n"
        "  at FILE:1 in endless\n"
        "      return endless(x)\n"
        "help: a condition that is traced does not end it: write a loop, lax.while_loop or qd.while_"
    )
