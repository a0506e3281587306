"""Bare calls `qd.vmap(f)(x)`: compiled once for a function object, as those of `jax.jit(f)(x)` are."""

import functools
import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.lanes import cache as vmap_cache

X = np.arange(3, dtype=np.float32)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each trace of a mapped function."""
    module = sys.modules["qdtrace.vmap"]
    seen: list[int] = []
    true = module._map

    def counted(*args: Any) -> Any:
        seen.append(1)
        return true(*args)

    monkeypatch.setattr(module, "_map", counted)
    return seen


def plus_one(a):
    return a + 1


class Scale:
    def __init__(self, k):
        self.k = k

    def __call__(self, a):
        return a * self.k

    def more(self, a):
        return a * self.k + 1


def bare(f: Callable[..., Any]) -> list[float]:
    return qd.vmap(f)(X).tolist()


@pytest.mark.full
def test_a_bare_call_is_traced_once(traces: list[int]) -> None:
    for _ in range(3):
        assert bare(plus_one) == [1, 2, 3]
        assert jax.grad(lambda x: qd.vmap(plus_one)(x).sum())(X).tolist() == [1, 1, 1]
        assert jax.jit(lambda x: qd.vmap(plus_one)(x))(X).tolist() == [1, 2, 3]
    assert len(traces) == 1
    assert qd.vmap(plus_one)(X.astype(np.int32)).dtype == jnp.int32
    assert qd.vmap(plus_one)(X[:0]).shape == (0,)
    assert len(traces) == 3
    with qd.options(bounds="clip"):
        assert bare(plus_one) == [1, 2, 3]
    with jax.enable_x64(True):
        assert qd.vmap(plus_one)(np.arange(3.0)).dtype == jnp.float64
    assert bare(plus_one) == [1, 2, 3]
    assert len(traces) == 5


@pytest.mark.full
def test_axes_tell_calls_apart(traces: list[int]) -> None:
    def f(a, b):
        return a - b.sum()

    rows = np.ones((3, 3), np.float32)
    for _ in range(2):
        assert qd.vmap(f, (0, None))(X, rows).tolist() == [-9, -8, -7]
        assert qd.vmap(f, [0, 1])(X, rows).tolist() == [-3, -2, -1]
        assert qd.vmap(f, (0, 1), out_axes=-1)(X, rows).tolist() == [-3, -2, -1]
        assert qd.vmap(plus_one, axis_size=3)(X).tolist() == [1, 2, 3]
        assert qd.vmap(qd.vmap(plus_one))(rows).tolist() == (rows + 1).tolist()
        assert qd.vmap(qd.vmap(plus_one, out_axes=0), out_axes=1)(rows).tolist() == (rows + 1).tolist()
    assert len(traces) == 6


def powers(a, n=3):
    return a * powers(a, n - 1) if n else a


def test_a_function_that_names_itself(traces: list[int]) -> None:
    def local(a, n=1):
        return a * local(a, n - 1) if n else a

    for _ in range(2):
        assert bare(powers) == [0, 1, 16]
        assert bare(local) == [0, 1, 4]
    assert len(traces) == 2


@pytest.mark.full
def test_methods_objects_and_functions_of_jax(traces: list[int]) -> None:
    scale = Scale(3.0)
    for _ in range(2):
        assert bare(scale) == [0, 3, 6]
        assert bare(scale.more) == [1, 4, 7]
        assert bare(jnp.negative) == [0, -1, -2]
        assert qd.vmap(jax.nn.relu)(-X).tolist() == [0, 0, 0]
    assert len(traces) == 5  # a method is another object each time
    kept = scale.more
    for _ in range(2):
        assert bare(kept) == [1, 4, 7]
    assert len(traces) == 6


@pytest.mark.full
@pytest.mark.parametrize("call", [bare, lambda f: jax.jit(f)(X).tolist()], ids=["qd.vmap", "jax.jit"])
def test_the_rules_are_those_of_jax(call: Callable[..., Any]) -> None:
    """What a function object names is not looked at again; another object is another function."""
    scale, held = Scale(1.0), Scale(1.0)

    def f(a):
        return a * RATE * held.k

    try:
        assert call(f) == call(scale) == call(lambda a: a * RATE) == [0, 1, 2]
        _set_globals(RATE=2.0)
        held.k = scale.k = 2.0
        assert call(f) == call(scale) == [0, 1, 2]
        assert call(lambda a: a * RATE) == [0, 2, 4]
        assert call(scale.more) == [1, 3, 5]
        scale.k = 3.0
        assert call(scale.more) == [1, 4, 7]
        assert call(Scale(5.0)) == [0, 5, 10]
    finally:
        _set_globals(RATE=1.0)


RATE = 1.0


def _set_globals(**values: Any) -> None:
    globals().update(values)


def test_another_code_of_a_function_is_another_function() -> None:
    """As notebooks set it that load a module again."""

    def f(a, k=1.0):
        return a * k

    def g(a, k=1.0):
        return a * k * 2

    assert bare(f) == [0, 1, 2]
    f.__defaults__ = (2.0,)
    assert bare(f) == [0, 2, 4]
    f.__code__ = g.__code__
    assert bare(f) == [0, 4, 8]


def test_arrays_of_other_memory_order_are_told_apart() -> None:
    rows = np.arange(4.0, dtype=np.float32).reshape(2, 2)
    for k in (np.asfortranarray(rows), rows, np.asfortranarray(rows)):
        assert bare(lambda a, k=k: a * k.ravel(order="K")[1]) == (X * k.ravel(order="K")[1]).tolist()


def _used(use: Callable[..., Any]) -> list[Any]:
    held = Scale(2.0)

    def f(a):
        return a * held.k + 0.125

    use(f)
    assert f in [entry.root() for entry in vmap_cache._entries.values()]
    return [weakref.ref(f), weakref.ref(held)]


@pytest.mark.parametrize("use", [bare, lambda f: jax.grad(lambda x: qd.vmap(f)(x).sum())(X)], ids=["value", "grad"])
@pytest.mark.usefixtures("young_heap")
def test_nothing_is_kept_alive(use: Callable[..., Any]) -> None:
    before = set(vmap_cache._entries)
    gone = _used(use)
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert set(vmap_cache._entries) <= before


def test_the_oldest_goes_first(monkeypatch: pytest.MonkeyPatch, traces: list[int]) -> None:
    monkeypatch.setattr(vmap_cache, "_MOST", 2)
    monkeypatch.setattr(vmap_cache, "_entries", type(vmap_cache._entries)())
    functions = [lambda a, k=k: a + k for k in range(3)]
    for f in functions:
        bare(f)
    bare(functions[1])
    assert len(traces) == 3
    assert bare(functions[0]) == [0, 1, 2]
    assert len(traces) == 4


def test_a_function_with_the_attributes_of_a_mapped_one_is_another() -> None:
    inner = qd.vmap(plus_one)

    @functools.wraps(inner)
    def outer(row):
        return inner(row) * 10

    rows = np.ones((2, 3), np.float32)
    assert qd.vmap(outer)(rows).tolist() == [[20] * 3] * 2
    assert qd.vmap(qd.vmap(functools.wraps(inner)(lambda a: a * 3)))(rows).tolist() == [[3] * 3] * 2


def test_another_kind_of_random_keys_is_another_trace() -> None:
    def f(k):
        return jax.random.uniform(jax.random.key(k))

    numbers = np.arange(3)
    found = qd.vmap(f)(numbers)
    with jax.default_prng_impl("rbg"), pytest.raises(qd.UnsupportedError, match="needs threefry2x32 keys"):
        qd.vmap(f)(numbers)
    np.testing.assert_array_equal(qd.vmap(f)(numbers), found)
