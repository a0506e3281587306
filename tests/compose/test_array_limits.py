"""Limits of arrays: their values for all dtypes, and how often they are found."""

import gc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from qdtrace import counters
from qdtrace.compose.array_limits import limits_of
from qdtrace.limits import Limits

I4 = jnp.arange(3, dtype=jnp.int4)
INTEGERS = [np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8)]


def reductions() -> int:
    return counters.counts["size_reductions"]  # `qd.stats` looks at the disk


def test_powers_of_two() -> None:
    assert limits_of(jnp.array([0, 3, 3, 8, 9, 13])) == Limits(0, 16, (8,))
    assert limits_of(jnp.array([7, 5, 2])) == Limits(0, 8, (8,))  # from the last one to the first
    assert limits_of(jnp.array([-3, -17])) == Limits(-32, 0, (16,))
    assert limits_of(jnp.array([[0, 4, 5], [2, 64, 60]])) == Limits(0, 64, (64, 64))
    assert limits_of(37) == Limits(0, 64, ())
    assert limits_of(jnp.int32(0)) == Limits(0, 0, ())
    assert limits_of(jnp.zeros((3, 0), jnp.int32)) == Limits(0, 0, (0, 0))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_limits_hold_and_say_less_than_the_dtype(dtype: np.dtype) -> None:
    rng, info = np.random.default_rng(dtype.num), np.iinfo(dtype)
    for shape in [(1,), (5,), (2, 3), (3, 1, 4)]:
        for low, high in [(0, 9), (0, int(info.max) // 2), (int(info.min), int(info.max)), (int(info.max) - 3,) * 2]:
            array = rng.integers(low, high, shape, dtype, endpoint=True)
            wanted = [int(x) for x in array.ravel()]
            found = limits_of(array)
            assert found is not None
            assert info.min <= found.low <= min(wanted)
            assert max(wanted) <= found.high <= info.max
            assert (found.high == info.max) == (max(wanted) == info.max)
            assert (found.low == info.min) == (min(wanted) == info.min) or not info.min
            for axis, step in enumerate(found.steps):
                exact = array.astype(object)
                largest = max(0, *(exact - np.roll(exact, 1, axis)).ravel())
                assert largest <= step
                assert step < 2 * max(largest, 1) or step <= 2 * (max(wanted) - min(wanted))


@pytest.mark.parametrize(
    "value", [1.5, True, jnp.ones(3), jnp.array([True]), np.ones(2), "a", None, jax.random.key(0), I4]
)
def test_what_has_none(value: Any) -> None:
    before = reductions()
    assert limits_of(value) is None
    assert reductions() - before == 0


def test_numbers_of_another_byte_order() -> None:
    assert limits_of(np.array([1, 300], ">i4")) == Limits(0, 512, (512,))


def test_tracers_and_deleted_arrays_have_none() -> None:
    found: list[object] = []
    jax.jit(lambda x: found.append(limits_of(x)) or x)(jnp.arange(3))
    gone = jnp.arange(3)
    gone.delete()
    assert [*found, limits_of(gone)] == [None, None]


def test_an_array_is_looked_at_once_and_an_equal_one_anew() -> None:
    first, second = jnp.arange(5) * 4, jnp.arange(5) * 4
    before = reductions()
    assert limits_of(first) == limits_of(first) == limits_of(second) == Limits(0, 16, (4,))
    assert reductions() - before == 2


@pytest.mark.usefixtures("young_heap")
def test_an_array_at_the_address_of_one_that_is_gone() -> None:
    for step in range(1, 200):
        array = jnp.arange(3) * step
        address = id(array)
        assert limits_of(array).high >= 2 * step  # type: ignore[union-attr]
        del array
        gc.collect()
        kept = [jnp.arange(3) * 1000]
        while id(kept[-1]) != address and len(kept) < 20:
            kept.append(jnp.arange(3) * 1000)
        if id(kept[-1]) == address:
            assert limits_of(kept[-1]) == Limits(0, 2048, (1024,))
            return
    pytest.fail("no array got the address of another one")


def test_arrays_of_numpy_are_looked_at_each_time() -> None:
    array = np.array([0, 4])
    array.flags.writeable = False
    before = reductions()
    assert limits_of(array) == Limits(0, 4, (4,))
    array.flags.writeable = True
    array[1] = 9
    assert limits_of(array) == Limits(0, 16, (16,))
    assert reductions() - before == 2
