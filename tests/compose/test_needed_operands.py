"""Arguments that a program overwrites whole: what the caller keeps is not copied, the rest changes in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.compose.needed_operands import WORTH

N = WORTH // 4


@qd.jit
def step(x, v):
    for i in qd.range(x.shape[0]):
        v[i] += 2 * x[i]
        x[i] += v[i]
    return x, v


def wanted(x: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    v = v + 2 * x
    return x + v, v


def aliases(f: Any, *args: Any) -> int:
    """How many results of calls are in the memory of an operand."""
    return f.lower(*args).as_text().count("#stablehlo.output_operand_alias<")


def arguments(n: int = N) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n, dtype=np.float32), np.ones(n, np.float32)


def test_arguments_that_the_caller_keeps_are_not_copied() -> None:
    args = tuple(map(jnp.asarray, arguments()))
    around = jax.jit(step)
    assert aliases(around, *args) == 0
    for f in (step, around, jax.jit(lambda x, v: step(x, v))):
        for got, want in zip(f(*args), wanted(*arguments()), strict=True):
            np.testing.assert_array_equal(got, want)
        for kept, before in zip(args, arguments(), strict=True):
            np.testing.assert_array_equal(kept, before)


def test_donated_arguments_are_changed_in_place() -> None:
    one, both = jax.jit(step, donate_argnums=0), jax.jit(step, donate_argnums=(0, 1))
    assert aliases(one, *arguments()) == 1
    assert aliases(both, *arguments()) == 2
    args = tuple(map(jnp.asarray, arguments()))
    places = {x.unsafe_buffer_pointer() for x in args}
    got = both(*args)
    assert {x.unsafe_buffer_pointer() for x in got} == places
    for x, want in zip(got, wanted(*arguments()), strict=True):
        np.testing.assert_array_equal(x, want)


def test_carries_of_loops_are_changed_in_place() -> None:
    @jax.jit
    def run(x, v):
        return jax.lax.fori_loop(0, 3, lambda _, c: step(*c), (x, v))

    assert aliases(run, *arguments()) == 2
    want = arguments()
    for _ in range(3):
        want = wanted(*want)
    for got, expected in zip(run(*arguments()), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_values_of_the_function_are_changed_in_place() -> None:
    twice = jax.jit(lambda x, v: step(*step(x, v)))
    assert aliases(twice, *arguments()) == 2  # of the second call
    for got, want in zip(twice(*arguments()), wanted(*wanted(*arguments())), strict=True):
        np.testing.assert_array_equal(got, want)


def test_one_argument_twice() -> None:
    x = arguments()[0]
    for got, want in zip(jax.jit(lambda x: step(x, x))(x), wanted(x, x), strict=True):
        np.testing.assert_array_equal(got, want)


def test_small_arrays_are_copied() -> None:
    assert aliases(jax.jit(step), *arguments(N - 1)) == 2


def test_what_is_overwritten_in_part_is_copied() -> None:
    @qd.jit
    def inside(x):
        for i in qd.range(1, x.shape[0]):
            x[i] = 2 * x[i]
        return x

    x = arguments()[0]
    assert aliases(jax.jit(inside), x) == 1
    np.testing.assert_array_equal(inside(x), 2 * x)


@pytest.mark.parametrize("branch", [True, False])
def test_branches(branch: bool) -> None:
    x, v = arguments()
    got = jax.jit(lambda p, x, v: jax.lax.cond(p, step, lambda x, v: (v, x), x, v))(branch, x, v)
    for one, want in zip(got, wanted(x, v) if branch else (v, x), strict=True):
        np.testing.assert_array_equal(one, want)
