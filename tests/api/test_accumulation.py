"""`b[k] += v` from many threads: no update is lost, whatever the index is and whatever v does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

N = 1000
PLACES = np.arange(N) % 3
COUNTS = np.bincount(PLACES, minlength=4)
INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


def by_element(p):
    h = qd.zeros((4,), jnp.int32)
    for i in qd.range(N):
        h[p[i]] += 1
    return h


def by_cell(p):
    h = qd.zeros((4,), jnp.int32)
    for i in qd.range(N):
        c = qd.local(p[i])
        h[c] += 1
    return h


def by_hash(p):
    h = qd.zeros((4,), jnp.int32)
    for i in qd.range(N):
        h[(p[i] * 5 + 4) % 4] -= -1
    return h


def by_pair(p):
    h = qd.zeros((2, 4), jnp.int32)
    for i in qd.range(N):
        c = qd.local(p[i])
        h[np.uint8(1), c] += 1
    return h[1]


@pytest.mark.every_case
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("function", [by_element, by_cell, by_hash, by_pair])
def test_every_integer(function, dtype) -> None:
    with jax.enable_x64(dtype.endswith("64")):
        np.testing.assert_array_equal(qd.jit(function)(PLACES.astype(dtype)), COUNTS)


@pytest.mark.parametrize("k", [np.uint8(2), np.array(2, np.int16), 2])
def test_buffer_of_rank_0(k) -> None:
    @qd.jit
    def f(k):
        h = qd.zeros((4,), jnp.int32)
        for _ in qd.range(N):
            h[k] += 1
        return h

    np.testing.assert_array_equal(f(k), [0, 0, N, 0])


def test_places_that_may_be_one_place():
    """A constant one, two that are arguments, and one that each iteration chooses."""

    @qd.jit
    def f(x, a, b):
        out = qd.ones(4, jnp.int32)
        for i in qd.range(x.shape[0]):
            out[0] += 1
            out[a] += 10
            out[b] += 100
            out[x[i]] += 1000
        return out

    x = np.arange(3000, dtype=np.int32) % 4
    for a, b in ((0, 0), (0, 2), (3, 3), (1, 2)):
        want = 1 + 1000 * np.bincount(x, minlength=4)
        for place, value in ((0, 1), (a, 10), (b, 100)):
            want[place] += value * len(x)
        np.testing.assert_array_equal(f(x, a, b), want)


def test_value_that_accumulates_itself() -> None:
    @qd.jit
    def f(p):
        h = qd.zeros((4,), jnp.int32)

        def value():
            h[3] += 1
            h[p[0]] += 1
            return 1

        for i in qd.range(N):
            h[p[i]] += value()
        return h

    np.testing.assert_array_equal(f(PLACES.astype(np.int32)), COUNTS + np.array([N, 0, 0, N]))


def test_the_value_comes_first() -> None:
    """What v stores in the element is part of the sum."""

    @qd.jit
    def f(x):
        def value():
            x[0] = 10
            return 1

        x[0] += value()
        return x

    np.testing.assert_array_equal(f(np.array([5, 6], np.int32)), [11, 6])
