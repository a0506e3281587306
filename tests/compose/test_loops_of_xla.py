"""Calls inside XLA loops: the carry must really change, whatever the shape of the body."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd


@qd.jit
def advance(x, v):
    for i in qd.range(x.shape[0]):
        x[i] = x[i] + 1
    for i in qd.range(v.shape[0]):
        v[i] = v[i] * 2
    return x, v


@qd.jit
def below(x, limit):
    out = qd.zeros((1,), jnp.bool_)
    for i in qd.range(1):
        out[i] = x[i] < limit
    return out


def test_while_body_that_is_one_call() -> None:
    """XLA takes such a body for loop invariant when the call is the root of the loop's body."""
    x = jnp.zeros(4)
    run = jax.jit(lambda x: jax.lax.while_loop(lambda c: c[0][0] < 3, lambda c: advance(*c), (x, x + 1)))
    got_x, got_v = run(x)
    np.testing.assert_array_equal(got_x, np.full(4, 3.0, np.float32))
    np.testing.assert_array_equal(got_v, np.full(4, 8.0, np.float32))


def test_while_condition_that_is_a_call() -> None:
    x = jnp.zeros(4)
    run = jax.jit(lambda x: jax.lax.while_loop(lambda c: below(c[0], 3.0)[0], lambda c: advance(*c), (x, x + 1)))
    np.testing.assert_array_equal(run(x)[1], np.full(4, 8.0, np.float32))


@pytest.mark.parametrize("length", [0, 1, 7])
def test_scan_and_fori(length: int) -> None:
    x = jnp.arange(5.0)
    want = np.arange(5) + length, (np.arange(5) + 1) * 2.0**length
    scanned = jax.lax.scan(lambda c, _: (advance(*c), c[0]), (x, x + 1), length=length)
    looped = jax.lax.fori_loop(0, length, lambda _, c: advance(*c), (x, x + 1))
    for got in (scanned[0], looped):
        np.testing.assert_array_equal(got[0], want[0])
        np.testing.assert_array_equal(got[1], want[1])
    np.testing.assert_array_equal(scanned[1], np.arange(5) + np.arange(length)[:, None])


def test_conditional_around_a_call() -> None:
    run = jax.jit(lambda p, x: jax.lax.cond(p, lambda x: advance(x, x)[0], lambda x: x, x))
    x = jnp.arange(3.0)
    np.testing.assert_array_equal(run(True, x), np.arange(3) + 1)
    np.testing.assert_array_equal(run(False, x), np.arange(3))


def test_carry_is_updated_in_place() -> None:
    """One copy of the argument before the loop, none inside."""
    run = jax.jit(lambda x: jax.lax.fori_loop(0, 9, lambda _, c: advance(*c), (x, x + 1)))
    text = run.lower(jnp.zeros(1000)).compile().as_text()
    body = next(part for part in text.split("\n\n") if "custom-call" in part and "ENTRY" not in part)
    assert " copy(%" not in "\n".join(line for line in body.splitlines() if "f32[1000]" in line)
