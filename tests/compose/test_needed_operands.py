"""Arguments that a program overwrites whole: what the caller keeps is not copied, the rest changes in place."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.ir.memory import LARGE

N = LARGE // 4


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


def test_a_call_in_two_places() -> None:
    """One lowering serves both: the values between them are nobody's, so that of the arguments decides."""
    twice = jax.jit(lambda x, v: step(*step(x, v)))
    assert aliases(twice, *arguments()) == 0
    for got, want in zip(twice(*arguments()), wanted(*wanted(*arguments())), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_call_before_a_loop_around_it() -> None:
    """What the loop carries decides: it would be copied in each iteration."""

    @jax.jit
    def run(x, v):
        return jax.lax.fori_loop(0, 3, lambda _, c: step(*c), step(x, v))

    assert aliases(run, *arguments()) == 2
    want = arguments()
    for _ in range(4):
        want = wanted(*want)
    for got, expected in zip(run(*arguments()), want, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_values_of_the_function() -> None:
    def made(x, v):
        return step(x + 1, v + 1)

    def kept(x, v):
        a = jnp.sin(x)
        return *step(a, v + 1), a

    assert aliases(jax.jit(made), *arguments()) == 2
    assert aliases(jax.jit(kept), *arguments()) == 1
    x, v = arguments()
    for got, want in zip(jax.jit(made)(x, v), wanted(x + 1, v + 1), strict=True):
        np.testing.assert_array_equal(got, want)


def test_constants_of_a_loop_stay() -> None:
    """Each iteration begins with the same content."""

    @jax.jit
    def run(x, v):
        def body(total, _):
            a, b = step(x, v)
            return total + a[0] + b[-1], None

        return jax.lax.scan(body, jnp.float32(0), None, length=3)[0]

    assert aliases(run, *arguments()) == 0
    x, v = wanted(*arguments())
    assert run(*arguments()) == 3 * (x[0] + v[-1])


def test_loops_with_a_condition_carry_in_place() -> None:
    @jax.jit
    def run(x, v):
        return jax.lax.while_loop(lambda c: c[0][0] < 5, lambda c: step(*c), (x, v))

    assert aliases(run, *arguments()) == 2
    x, v = arguments()
    while x[0] < 5:
        x, v = wanted(x, v)
    for got, want in zip(run(*arguments()), (x, v), strict=True):
        np.testing.assert_array_equal(got, want)


def test_other_shapes_of_an_argument() -> None:
    x, v = arguments()
    assert aliases(jax.jit(lambda x, v: step(x.reshape(-1), v[0])), x.reshape(8, -1), v[None]) == 0


def test_lanes() -> None:
    x, v = (a.reshape(4, -1) for a in arguments())
    f = jax.jit(jax.vmap(step))
    assert aliases(f, x, v) == 0
    for got, want in zip(f(x, v), wanted(x, v), strict=True):
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
