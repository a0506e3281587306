"""Accesses whose value, or whose buffer, nobody uses: they are checked as any other, whatever the options are."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.written import written

X = np.ones(4, np.float32)
OPTIONS: list[dict[str, Any]] = [{}, {"opt_level": 0, "fuse_tasks": "off"}, {"debug": True}]
with_options = pytest.mark.parametrize("options", OPTIONS, ids=["default", "opt_level 0", "debug"])
ACCESSES = {
    "loaded": "for i in qd.range(3):\n    x[i + k]",
    "loaded under a condition": "for i in qd.range(3):\n    with qd.when(x[i] > 0):\n        x[i + k]",
    "loaded between loops": "x[k]",
    "row loaded between loops": "qd.zeros((4, 300))[k]",
    "row stored between loops": "t = qd.zeros((4, 300))\nt[k] = 1.0",
    "stored into a buffer that is not returned": "t = qd.zeros(4)\nfor i in qd.range(3):\n    t[i + k] = 1.0",
    "added to a buffer that is not returned": "t = qd.zeros(4)\nfor i in qd.range(3):\n    t[i + k] += x[i]",
    "stored into a private array": "for _ in qd.range(3):\n    p = qd.local(jnp.ones(4))\n    p[k] = 1.0",
    "loaded from a large private array": (
        "for i in qd.range(3):\n    p = qd.local(jnp.zeros(300))\n    with qd.when(x[i] > 0):\n        p[k * 100]"
    ),
    "private beside a store": "for i in qd.range(3):\n    p = qd.local(jnp.ones(4))\n    p[k] = 1.0\n    x[i] = x[i]",
    "stored what was there": "for i in qd.range(3):\n    x[i + k] = x[i + k]",
    "multiplied by zero": (
        "n, out = qd.zeros(4, jnp.int32), qd.copy(x)\nfor i in qd.range(3):\n    out[i] = x[i] + n[i + k] * 0\n"
        "return out"
    ),
    "only array code uses it": (
        "t, y = qd.zeros(4), qd.zeros(4)\nfor i in qd.range(3):\n    t[i + k] = 1.0\ny[...] = t[...] + 1"
    ),
    "array code that is nothing": (
        "t = qd.zeros(4, jnp.int32)\nfor i in qd.range(3):\n    t[i + k] = 1\nreturn x[...] + 0 * t[...]"
    ),
    "only another loop uses it": (
        "t, y = qd.zeros(4), qd.zeros(4)\nfor i in qd.range(3):\n    t[i + k] = 1.0\ntotal = jnp.sum(t[...])\n"
        "for i in qd.range(4):\n    y[i] = total"
    ),
    "in a loop around tasks": (
        "j, t = qd.zeros((), jnp.int32), qd.zeros(4)\nfor _ in qd.while_(lambda: j[()] < 2):\n"
        "    for i in qd.range(3):\n        t[i + k] = 1.0\n    j[()] += 1"
    ),
    "under a condition around tasks": (
        "t = qd.zeros(4)\nwith qd.when(x[0] > 0):\n    for i in qd.range(3):\n        t[i + k] = 1.0"
    ),
    "condition of a loop": (
        "for _ in qd.range(3):\n    p = qd.local(jnp.zeros(3))\n    for _ in qd.while_(lambda: p[k] < 0):\n"
        "        p[0] = 1.0"
    ),
    "between what is carried": (  # the load of `b[i] += v`, whose sum is stored behind a jump
        "t = qd.zeros(4)\nfor _ in qd.range(3, serial=True):\n    for j in qd.range(2):\n        v = t[k]\n"
        "        qd.continue_if(j >= 0)\n        v += 1\n        t[k] = v"
    ),
}


def function_of(name: str) -> Any:
    return written(ACCESSES[name] + "\nreturn x", "x, k")


@pytest.mark.every_case
@with_options
@pytest.mark.parametrize("name", ACCESSES)
def test_it_is_checked(name: str, options: dict[str, Any]) -> None:
    f = function_of(name)
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


@pytest.mark.parametrize("name", ACCESSES)
def test_its_derivative(name: str) -> None:
    f = function_of(name)
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
