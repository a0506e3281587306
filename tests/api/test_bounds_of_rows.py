"""Traced indices of rows between loops that are too large for registers, and so are XLA's."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import pytest

import qdtrace as qd

CLIP = {"bounds": "clip"}
FAR = (4, -1, -4, 100, 2**31 - 1, -(2**31))
"""Outside of an axis of 4."""


def big_load(x: Any, k: Any) -> Any:
    return x[k] + 0


def big_store(x: Any, k: Any) -> Any:
    x[k] = jnp.ones(x.shape[1])
    return x


def big_add(x: Any, k: Any) -> Any:
    x[k] += jnp.ones(x.shape[1])
    return x


def big_max(x: Any, k: Any) -> Any:
    x.at[k].max(2 * x[0, :])
    return x


def big_column(x: Any, k: Any) -> Any:
    n = x.shape[1]
    y = qd.zeros((n, 4))
    y[10 : n - 10, k] = x[0, 10 : n - 10]
    return y


@pytest.mark.full
@pytest.mark.parametrize("size", [100, 300, 5000])
@pytest.mark.parametrize("f", [big_load, big_store, big_add, big_max, big_column], ids=lambda f: f.__name__)
def test_large_rows_between_loops(f: Callable[..., Any], size: int) -> None:
    x = jnp.arange(4.0 * size).reshape(4, size)
    function, debugged, clipped = qd.jit(f), qd.jit(f, options={"debug": True}), qd.jit(f, options=CLIP)
    name, axis, shape = ("y", 1, f"({size}, 4)") if f is big_column else ("x", 0, f"(4, {size})")
    for index in FAR:
        with pytest.raises(qd.BoundsError) as caught:
            qd.block_until_ready(function(x, index))
        said = f"index {index} is out of bounds for axis {axis} of `{name}` with shape {shape}"
        assert str(caught.value).startswith(said)
        assert f"in {f.__name__}\n" in str(caught.value)
    with pytest.raises(qd.BoundsError) as other:
        qd.block_until_ready(debugged(x, FAR[-1]))
    assert str(other.value) == str(caught.value)
    wanted: Any = {
        big_load: lambda k: x[k], big_store: lambda k: x.at[k].set(1.0), big_add: lambda k: x.at[k].add(1.0),
        big_max: lambda k: x.at[k].max(2 * x[0]),
        big_column: lambda k: jnp.zeros((size, 4)).at[10 : size - 10, k].set(x[0, 10 : size - 10]),
    }[f]  # fmt: skip
    for index in range(4):
        assert (function(x, index) == wanted(index)).all()
        assert (clipped(x, index) == wanted(index)).all()
    for dtype in (jnp.uint8, jnp.int8, jnp.uint32):
        assert (function(x, jnp.array(3, dtype)) == wanted(3)).all()
    nothing = {big_load: None, big_column: jnp.zeros((size, 4))}.get(f, x)
    for index in FAR:
        assert (clipped(x, index) == (x[3 if index > 0 else 0] if nothing is None else nothing)).all()


@pytest.mark.full
def test_large_rows_under_a_condition_are_checked_where_it_holds() -> None:
    @qd.jit
    def f(x: Any, k: Any, c: Any) -> Any:
        with qd.when(c):
            x[k] = jnp.ones(100)
        return x

    x = jnp.zeros((4, 100))
    assert not f(x, 9, False).any()
    assert f(x, 3, True)[3].all()
    with pytest.raises(qd.BoundsError, match=r"^index 9 is"):
        qd.block_until_ready(f(x, 9, True))


@pytest.mark.full
def test_large_rows_in_a_loop_around_tasks() -> None:
    @qd.jit
    def f(x: Any, last: Any) -> Any:
        k = qd.full((), 0, jnp.int32)
        for _ in qd.while_(lambda: k[()] <= last):
            x[k[()]] = jnp.ones(100)
            for i in qd.range(100):
                x[0, i] += 1.0
            k[()] += 1
        return x

    x = jnp.zeros((4, 100))
    assert f(x, 3).tolist() == jnp.ones((4, 100)).at[0].set(5.0).tolist()
    with pytest.raises(qd.BoundsError, match=r"^index 4 is out of bounds for axis 0 of `x`"):
        qd.block_until_ready(f(x, 4))
