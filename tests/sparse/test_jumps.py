"""Patterns and values of loops that `qd.continue_if` and `qd.break_if` leave, against dense derivatives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

DRAW = np.random.default_rng(0)
COUNT, POINTS = 8, 7
NEIGHBOURS = jnp.asarray(DRAW.integers(0, POINTS, (COUNT, 3)), jnp.int32)
KEPT = jnp.asarray(DRAW.integers(0, 2, COUNT), jnp.int32)


def skipped(x: Any, k: Any, kept: Any, out: Any, i: Any) -> None:
    qd.continue_if(kept[i] == 0)
    out[i % 3] += x[k[i, 0]] ** 2 * x[k[i, 1]]


def skipped_by_the_argument(x: Any, k: Any, kept: Any, out: Any, i: Any) -> None:
    qd.continue_if(x[k[i, 0]] > 0.3)
    out[i % 3] += x[k[i, 0]] ** 2 * x[k[i, 1]]
    qd.continue_if((x[k[i, 2]] > 0) & (kept[i] > 0))
    out[i % 3] += x[k[i, 2]] ** 3


def skipped_in_a_condition(x: Any, k: Any, kept: Any, out: Any, i: Any) -> None:
    with qd.when(kept[i] > 0):
        out[i % 3] += jnp.sin(x[k[i, 0]])
        qd.continue_if(x[k[i, 1]] > 0)
        out[i % 3] += x[k[i, 1]] ** 3
    with qd.otherwise():
        qd.continue_if(k[i, 2] == 1)
    out[i % 3] += x[k[i, 2]] ** 2 * x[k[i, 1]]


def left_early(x: Any, k: Any, kept: Any, out: Any, i: Any) -> None:
    total = qd.local(jnp.zeros((), x.dtype))
    for j in qd.range(3):
        qd.continue_if(x[k[i, j]] > 1)
        total.value += x[k[i, j]] ** 2 * x[k[i, 0]]
        qd.break_if(x[k[i, j]] > 0)
        total.value *= 1.5
    out[i % 3] += total.value * x[i % POINTS]


def left_in_a_condition(x: Any, k: Any, kept: Any, out: Any, i: Any) -> None:
    for j in qd.range(3):
        with qd.when(k[i, j] < 3):
            qd.break_if(kept[i] > 0)
            out[i % 3] += x[k[i, j]] ** 2
        for other in qd.range(2):
            qd.break_if(x[k[i, other]] > 0)
            out[i % 3] += x[k[i, j]] * x[k[i, other]]


BODIES = [skipped, skipped_by_the_argument, skipped_in_a_condition, left_early, left_in_a_condition]


@pytest.mark.full
@pytest.mark.sample(2)
@pytest.mark.parametrize("body", BODIES)
def test_jumps_leave_out_what_is_behind_them(body: Any) -> None:
    def sums(x: Any, k: Any, kept: Any) -> Any:
        out = qd.zeros(3, x.dtype)
        for i in qd.range(COUNT):
            body(x, k, kept, out, i)
        return out

    def scalar(x: Any, k: Any, kept: Any) -> Any:
        return jnp.sum(sums(x, k, kept)[...] * jnp.arange(1.0, 4.0))

    first, second = qd.jit(sums), qd.jit(scalar)
    args = jnp.asarray(DRAW.normal(size=POINTS), jnp.float32), NEIGHBOURS, KEPT
    pattern = qd.sparsity(first)(*args)
    matrix = pattern.to_scipy(qd.sparse_jacobian(first, pattern)(*args)).toarray()
    np.testing.assert_allclose(matrix, jax.jacobian(first)(*args), rtol=1e-5, atol=1e-5)
    pattern = qd.sparsity(second)(*args)
    values = qd.sparse_hessian(second, pattern)
    for sign in (1, -1):  # a pattern holds for other values of the argument
        x = sign * args[0]
        found = pattern.to_scipy(values(x, *args[1:])).toarray()
        np.testing.assert_allclose(found, jax.hessian(second)(x, *args[1:]), rtol=1e-5, atol=1e-5)


def test_places_behind_a_jump_are_not_looked_up() -> None:
    """What an iteration leaves out may be outside of the array; the pattern has no place for it."""

    @qd.jit
    def f(x: Any, k: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(k.shape[0]):
            qd.continue_if(k[i] < 0)
            out[()] += x[k[i]] ** 4
        return out

    x, k = jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([2, -1, 0, -7])
    pattern = qd.sparsity(f)(x, k)
    assert pattern.row.tolist() == pattern.col.tolist() == [0, 2]
    np.testing.assert_allclose(qd.sparse_hessian(f, pattern)(x, k), [12.0, 108.0], rtol=1e-6)


def test_an_outermost_loop_is_not_left() -> None:
    @qd.jit
    def f(x: Any) -> Any:
        out = qd.zeros((), x.dtype)
        for i in qd.range(x.shape[0], serial=True):
            qd.break_if(x[i] > 3)
            out[()] += x[i] ** 2
        return out

    with pytest.raises(qd.GradientError, match=r"a qd\.break_if of an outermost loop") as caught:
        qd.sparsity(f)(jnp.ones(3))
    assert "test_jumps.py" in str(caught.value)
    assert "under `qd.when`" in str(caught.value.help)
