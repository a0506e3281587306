"""Elementwise chains over arrays in memory are one loop, and what is read for the last time is written over."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests.importer.harness import check, imported

RNG = np.random.default_rng(8)
LONG = RNG.normal(size=(3, 300)).astype(np.float32)


def twice(x: Any) -> Any:
    y = jnp.sin(x)
    return y * jnp.cumsum(y)


def through_views(x: Any) -> Any:
    return jnp.cumsum((jnp.sin(x) * 2)[::-1].reshape(3, 100), 1) + jnp.exp(x).reshape(3, 100)


def of_a_call(x: Any) -> Any:
    return jax.jit(lambda v: v * 2 + 1)(jnp.sin(x)) + jax.jit(lambda v: v * v[::-1])(jnp.cos(x))


def changed_behind(x: Any) -> Any:
    y = jnp.cumsum(x)
    z = jnp.exp(y * 0.01)  # waits, while `y` is read again, and would be written over
    w = lax.dynamic_update_slice(y, x[:5], (3,))
    return z + w + jnp.cumsum(w)


def reversed_operand(x: Any) -> Any:
    y = jnp.cumsum(x)
    return jnp.tanh(y[::-1]) + jnp.tanh(y)


def in_a_loop(x: Any) -> Any:
    return lax.fori_loop(0, 3, lambda k, v: jnp.where(v > 0, v * 0.5, jnp.sin(v) + jnp.cumsum(v) * 0.1), x)


def of_other_dtypes(x: Any) -> Any:
    n = (x * 10).astype(jnp.int32)
    return jnp.where(n > 3, jnp.abs(n), n // 2).astype(jnp.float32) + lax.clamp(-1.0, x, 1.0)


def several_readers(x: Any) -> Any:
    a = x * 2
    b = a + 1
    c = b * a
    return jnp.cumsum(c) + b, c.sum(), jnp.argmax(jnp.cos(x))


FUNCTIONS = [
    twice, through_views, of_a_call, changed_behind, reversed_operand, in_a_loop, of_other_dtypes, several_readers,
]  # fmt: skip


@pytest.mark.full
@pytest.mark.sample(2, full=3)
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_values_and_derivatives(f: Any) -> None:
    with jax.enable_x64(True):
        x = jnp.asarray(LONG, float)
        for got, want in zip(*(jax.tree.leaves(v(f)(x)) for v in (qd.vmap, jax.vmap)), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)  # sums in another order
        total = lambda x: sum(jnp.sum(leaf.astype(float) ** 2) for leaf in jax.tree.leaves(f(x)))  # noqa: E731
        got, want = (jax.grad(lambda x, v=v: v(total)(x).sum())(x) for v in (qd.vmap, jax.vmap))
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_a_chain_is_one_loop_without_memory() -> None:
    program = check(lambda x: (jnp.sin(x) * 2 + jnp.cos(x)).sum(), LONG)
    assert program.count("cell") == 1  # the operand of the harness
    low = qd.jit(qd.vmap(lambda x: (jnp.sin(x) * 2 + jnp.cos(x)).sum())).lower(LONG)
    assert "cell" not in low.graph("trace")
    assert low.graph().count("for ") == 2  # the batch, and one loop


def test_an_expensive_function_is_computed_once_for_two_readers() -> None:
    program = imported(twice, LONG)
    assert program.count("sin") == 1
    assert program.count("cell") == 2


def test_memory_of_the_operand_of_a_chain_is_written_over() -> None:
    assert imported(lambda x: jnp.sin(x) * 2 + 1, LONG).count("cell") == 1
    # the view reads another place of what would be written over
    assert imported(lambda x: jnp.sin(x) * 2 + x[::-1], LONG).count("cell") == 2


def test_a_store_of_a_chain_needs_no_array() -> None:
    @qd.jit
    def scaled(x: Any) -> Any:
        out = qd.zeros(x.shape, x.dtype)
        for i in qd.range(x.shape[0]):
            row = x[i]
            out[i] = (row - row.mean()) * 2
        return out

    np.testing.assert_allclose(scaled(LONG), (LONG - LONG.mean(1, keepdims=True)) * 2, rtol=1e-5, atol=1e-6)
    assert scaled.lower(LONG).graph("trace").count("= cell[") == 1


ROWS = RNG.normal(size=(3, 6, 12)).astype(np.float32)
WITH_SPECIAL = np.where(RNG.random(ROWS.shape) < 0.05, np.float32(np.nan), ROWS)
WITH_SPECIAL[1, 2], WITH_SPECIAL[1, 3, 4] = -np.inf, np.inf


def normalised(axis: int) -> Any:
    def f(x: Any) -> Any:
        a = x @ x.T * 0.5
        e = jnp.exp(a - jnp.max(a, axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    return f


def of_heads(x: Any) -> Any:
    a = jnp.einsum("ihd,jhd->hij", *[x.reshape(6, 2, 6)] * 2)
    return jnp.einsum("hij,jhd->ihd", jax.nn.softmax(a), x.reshape(6, 2, 6))


def shifted_by_means(x: Any) -> Any:
    a = x.T @ x
    return a * jax.jit(lambda m: jax.lax.rsqrt(m * m + 1))(a.mean(0)), a - 2 * a.mean(1)[::-1, None]


def of_numbers(x: Any) -> Any:
    n = jnp.floor((x @ x.T) * 4).astype(jnp.int32)
    return n - n.max(1)[:, None], (n > 2) ^ jnp.any(n > 7, 0), n * n.min(0)


def of_complex_ones(x: Any) -> Any:
    a = (x @ x.T) * (1 + 2j)
    return a / a.sum(1)[:, None]


def changed_in_place(x: Any) -> Any:
    a = x @ x.T
    b = a.at[2].set(a.sum(0))
    return b - a.max(1)[:, None], lax.fori_loop(0, 2, lambda k, v: v - v.max(1)[:, None] * 0.5, b)


OF_ROWS = [
    normalised(0), normalised(1), of_heads, shifted_by_means, of_numbers, of_complex_ones, changed_in_place,
]  # fmt: skip


@pytest.mark.parametrize("f", OF_ROWS, ids=lambda f: f.__name__)
def test_numbers_of_rows_are_made_where_the_rows_are(f: Any) -> None:
    for x in (ROWS, WITH_SPECIAL) if f is not of_numbers else (ROWS,):  # no integers are NaN
        program = check(f, x, rtol=2e-5, atol=2e-5, budget=64)
    if f is of_heads or f.__name__ == "f":
        assert not program.count("select")


def test_a_softmax_has_one_loop_over_rows() -> None:
    low = qd.jit(qd.vmap(lambda x: jax.nn.softmax(x @ x.T) @ x)).lower(ROWS)
    graph = low.graph()
    assert "select" not in graph
    assert graph.count("exp ") == 6  # written out, for a row at a time
    assert graph.index("exp ") < graph.index("quotient ") < graph.index("for ", graph.index("exp "))
    x = np.concatenate([ROWS, WITH_SPECIAL])
    for v in (lambda f: f, lambda f: jax.grad(lambda x: (f(x) ** 2).sum())):
        one = lambda x: jax.nn.softmax(x @ x.T) @ x  # noqa: E731
        np.testing.assert_allclose(v(qd.vmap(one))(x), v(jax.vmap(one))(x), rtol=1e-4, atol=1e-4)


def test_an_argument_of_products_is_copied_in_a_loop() -> None:
    program = imported(lambda x: x @ np.ones((8, 40), np.float32), ROWS[..., :8], budget=64)
    assert program.count("store") <= 48 + 2
