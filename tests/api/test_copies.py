"""Compiled and mapped functions in copies, where they are themselves, and in pickles, where they are a name."""

import copy
import pickle
from functools import partial

import jax.numpy as jnp
import pytest

import qdtrace as qd


@qd.jit
def doubled(x):
    for i in qd.range(x.shape[0]):
        x[i] = 2 * x[i]
    return x


@qd.vmap
def next_number(a):
    return a + 1


@pytest.mark.parametrize("f", [doubled, next_number, qd.jit(partial(max, 1))], ids=["jit", "vmap", "partial"])
def test_copies_are_the_function(f) -> None:
    if f in (doubled, next_number):
        f(jnp.ones(2))  # with what a call leaves in it
    assert copy.copy(f) is f
    assert copy.deepcopy({"model": [f]}) == {"model": [f]}


@pytest.mark.parametrize("f", [doubled, next_number])
def test_pickled_by_name(f) -> None:
    f(jnp.ones(2))
    assert pickle.loads(pickle.dumps(f)) is f


def test_no_name_no_pickle() -> None:
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(qd.jit(lambda x: x))
