"""Accesses whose value, or whose buffer, nobody uses: they are checked as any other, whatever the options are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

if TYPE_CHECKING:
    from collections.abc import Callable

X = np.ones(4, np.float32)
OPTIONS: list[dict[str, Any]] = [{}, {"opt_level": 0, "fuse_tasks": "off"}, {"debug": True}]
with_options = pytest.mark.parametrize("options", OPTIONS, ids=["default", "opt_level 0", "debug"])


def loaded(x, k):
    for i in qd.range(3):
        x[i + k]
    return x


def loaded_under_a_condition(x, k):
    for i in qd.range(3):
        with qd.when(x[i] > 0):
            x[i + k]
    return x


def loaded_between_loops(x, k):
    x[k]
    return x


def row_loaded_between_loops(x, k):
    qd.zeros((4, 300))[k]
    return x


def row_stored_between_loops(x, k):
    t = qd.zeros((4, 300))
    t[k] = 1.0
    return x


def stored_into_a_buffer_that_is_not_returned(x, k):
    t = qd.zeros(4)
    for i in qd.range(3):
        t[i + k] = 1.0
    return x


def added_to_a_buffer_that_is_not_returned(x, k):
    t = qd.zeros(4)
    for i in qd.range(3):
        t[i + k] += x[i]
    return x


def stored_into_a_private_array(x, k):
    for _ in qd.range(3):
        p = qd.local(jnp.ones(4))
        p[k] = 1.0
    return x


def loaded_from_a_large_private_array(x, k):
    for i in qd.range(3):
        p = qd.local(jnp.zeros(300))
        with qd.when(x[i] > 0):
            p[k * 100]
    return x


def private_beside_a_store(x, k):
    for i in qd.range(3):
        p = qd.local(jnp.ones(4))
        p[k] = 1.0
        x[i] = x[i]
    return x


def stored_what_was_there(x, k):
    for i in qd.range(3):
        x[i + k] = x[i + k]
    return x


def multiplied_by_zero(x, k):
    n, out = qd.zeros(4, jnp.int32), qd.copy(x)
    for i in qd.range(3):
        out[i] = x[i] + n[i + k] * 0
    return out


def only_array_code_uses_it(x, k):
    t, y = qd.zeros(4), qd.zeros(4)
    for i in qd.range(3):
        t[i + k] = 1.0
    y[...] = t[...] + 1
    return x


def array_code_that_is_nothing(x, k):
    t = qd.zeros(4, jnp.int32)
    for i in qd.range(3):
        t[i + k] = 1
    return x[...] + 0 * t[...]


def only_another_loop_uses_it(x, k):
    t, y = qd.zeros(4), qd.zeros(4)
    for i in qd.range(3):
        t[i + k] = 1.0
    total = jnp.sum(t[...])
    for i in qd.range(4):
        y[i] = total
    return x


def in_a_loop_around_tasks(x, k):
    j, t = qd.zeros((), jnp.int32), qd.zeros(4)
    for _ in qd.while_(lambda: j[()] < 2):
        for i in qd.range(3):
            t[i + k] = 1.0
        j[()] += 1
    return x


def under_a_condition_around_tasks(x, k):
    t = qd.zeros(4)
    with qd.when(x[0] > 0):
        for i in qd.range(3):
            t[i + k] = 1.0
    return x


def condition_of_a_loop(x, k):
    for _ in qd.range(3):
        p = qd.local(jnp.zeros(3))
        for _ in qd.while_(lambda: p[k] < 0):  # noqa: B023
            p[0] = 1.0
    return x


def between_what_is_carried(x, k):
    """The load of `b[i] += v`, whose sum is stored behind a jump."""
    t = qd.zeros(4)
    for _ in qd.range(3, serial=True):
        for j in qd.range(2):
            v = t[k]
            qd.continue_if(j >= 0)
            v += 1
            t[k] = v
    return x


FUNCTIONS = [
    loaded, loaded_under_a_condition, loaded_between_loops, row_loaded_between_loops, row_stored_between_loops,
    stored_into_a_buffer_that_is_not_returned, added_to_a_buffer_that_is_not_returned, stored_into_a_private_array,
    loaded_from_a_large_private_array, private_beside_a_store, stored_what_was_there, multiplied_by_zero,
    only_array_code_uses_it, array_code_that_is_nothing, only_another_loop_uses_it, in_a_loop_around_tasks,
    under_a_condition_around_tasks, condition_of_a_loop, between_what_is_carried,
]  # fmt: skip


@pytest.mark.every_case
@with_options
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_it_is_checked(f: Callable[..., Any], options: dict[str, Any]) -> None:
    function, around = qd.jit(f, options=options), jax.jit(qd.jit(f, options=options))
    for index in (10, -7):
        with pytest.raises(qd.BoundsError, match="is out of bounds for axis 0 of "):
            qd.block_until_ready(function(X, index))
    np.testing.assert_array_equal(function(X, 1), X)
    if options == {}:
        with pytest.raises(Exception, match="is out of bounds for axis 0 of "):
            qd.block_until_ready(around(X, 10))
        for bounds in ("clip", "unchecked"):
            np.testing.assert_array_equal(qd.jit(f, options={"bounds": bounds})(X, 1), X)
        np.testing.assert_array_equal(qd.jit(f, options={"bounds": "clip"})(X, 10), X)


@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_its_derivative(f: Callable[..., Any]) -> None:
    gradient = jax.grad(lambda x, k: qd.jit(f)(x, k).sum())
    np.testing.assert_array_equal(gradient(X, 1), X)
    with pytest.raises(qd.BoundsError):
        qd.block_until_ready(gradient(X, 10))


def test_what_is_proved_is_not_kept_alive() -> None:
    def f(x: Any, k: Any) -> Any:
        t = qd.zeros(8)
        for i in qd.range(x.shape[0]):
            with qd.when((k >= 0) & (k < 4)):
                t[i + k] = x[i]
                x[k]
            own = qd.local(jnp.zeros(8))
            own[i % 8] = x[i]
        return x, t[...] + 1

    def nothing(x: Any, k: Any) -> Any:
        return f(x, k)[0]

    assert "qd_call" not in str(jax.make_jaxpr(qd.jit(nothing))(X, 3))
    text = str(jax.make_jaxpr(qd.jit(f))(X, 3))
    assert "qd_call" in text
    assert "optimization_barrier" not in text


@with_options
def test_a_load_that_is_not_used_is_no_race(options: dict[str, Any]) -> None:
    """Nor a read of memory that nobody has stored: it touches none."""

    @qd.jit(options=options)
    def f(x: Any, k: Any) -> Any:
        t = qd.empty(4)
        for i in qd.range(4):
            x[k]
            t[k]
            x[i] = 2.0
        return x

    assert f(X, 1).tolist() == [2.0] * 4


@with_options
def test_clip_of_indices_that_are_constants(options: dict[str, Any]) -> None:
    @qd.jit(options={"bounds": "clip"} | options)
    def f(b: Any) -> Any:
        o, old = qd.zeros((5, 4), b.dtype), qd.zeros((2, 4), b.dtype)
        row = qd.zeros((3, 2), b.dtype)
        row[1, 1] = 7
        for i in qd.range(4):
            o[0, i] = b[jnp.asarray(21)]
            o[1, i] = b[jnp.asarray(-3)]
            o[2, i] = b[i * 0 + 20] + b[jnp.uint16(7) * jnp.uint16(3)]
            o[3, i] = row[jnp.asarray(1), jnp.asarray(9)]
            own = qd.local(jnp.arange(3, dtype=b.dtype))
            own[jnp.asarray(3)] = 5
            own[jnp.asarray(-1)] += 5
            o[4, i] = own[jnp.asarray(8)] + 10 * own[0] + row[jnp.asarray(9)].sum()
            old[0, i] = qd.atomic_add(b, jnp.asarray(21), 1)
            old[1, i] = qd.atomic_add(b, jnp.asarray(-21), 1)
            b[jnp.asarray(4)] = 1
            b[jnp.asarray(-1)] += 1
        return b, o, old

    b, o, old = f(jnp.array([10, 20, 30, 40], jnp.int32))
    assert b.tolist() == [10, 20, 30, 40]
    assert o.tolist() == [[40] * 4, [10] * 4, [80] * 4, [7] * 4, [2] * 4]
    assert old.tolist() == [[40] * 4, [10] * 4]
