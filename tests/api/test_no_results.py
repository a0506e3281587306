"""Functions that return nothing: JAX runs nothing of them, and a warning says so."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import qdtrace as qd
from tests.written import written

EFFECTS = {
    "stores": ("for i in qd.range(3):\n    x[i] = 1", 2),
    "checks": ("for i in qd.range(3):\n    qd.check(x[i] < 1, 'no')", 2),
    "one store": ("x[0] = 1", 2),
    "whole": ("x[...] = 1", 2),
    "one sum": ("x[0] += 1", 2),
    "one product": ("x.at[0].mul(2)", 2),
    "one atomic": ("qd.atomic_max(x, 0, 1)", 2),
    "one check": ("qd.check(x[0] < 0, 'no')", 2),
    "of arrays": ("qd.check((x[...] < 0).all(), 'no')", 2),
    "known": ("qd.check(False, 'no')", 2),
    "under when": ("with qd.when(x[0] < 1):\n    x[1] = 2", 2),
    "while of tasks": ("for _ in qd.while_(lambda: x[0] < 1):\n    x[0] += 1", 2),
    "in lax": ("def store(k: Any, c: Any) -> Any:\n    x[k] = 1\n    return c\nlax.fori_loop(0, 3, store, 0)", 5),
}
"""Statements, and the line of the function that the warning names."""


@pytest.mark.parametrize("name", EFFECTS)
@pytest.mark.parametrize("around", [qd.jit, lambda f: jax.jit(qd.jit(f)), lambda f: qd.jit(f, options={"debug": True})])
def test_a_warning_names_the_line(name: str, around: Any) -> None:
    statements, line = EFFECTS[name]
    f = written(statements)
    with pytest.warns(qd.QdWarning) as caught:
        assert around(f)(jnp.zeros(3)) is None
    (warning,) = caught
    assert str(warning.message) == (
        "`f` returns nothing, so nothing of it runs: no loop, no store, no check\n"
        "help: return the buffers that it stores to; where it only checks, return an argument and use that one"
    )
    assert (warning.filename, warning.lineno) == (f.__code__.co_filename, line)


@pytest.mark.parametrize("text", ["pass", "_ = x[0] + 1\n_ = x[...].sum()", "qd.zeros(3)\nqd.copy(qd.empty_like(x))"])
def test_without_effects_there_is_nothing_to_say(text: str) -> None:
    assert qd.jit(written(text))(jnp.zeros(3)) is None


def test_a_function_that_another_one_calls() -> None:
    """Between loops it is as if called by itself; in a loop what it does is done."""

    def checks(x):
        for i in qd.range(3):
            qd.check(x[i] < 1, "no")

    @qd.jit
    def between(x):
        qd.jit(checks)(x[...])
        return x

    with pytest.warns(qd.QdWarning, match="`checks` returns nothing"):
        assert between(jnp.ones(3)).tolist() == [1, 1, 1]

    @qd.jit
    def inside(x):
        for i in qd.range(3):
            qd.jit(one_of)(x, i)
        return x

    def one_of(x, i):
        qd.check(x[i] < 2, "no")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert inside(jnp.ones(3)).tolist() == [1, 1, 1]
        with pytest.raises(qd.CheckError, match="check failed: no"):
            qd.block_until_ready(inside(jnp.full(3, 2.0)))
