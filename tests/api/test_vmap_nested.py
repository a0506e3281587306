# ruff: noqa: B023
"""Nested `qd.vmap`: one task over the product; `out_axes=None`; `qd.vmap` in lanes, loops and under `jax.vmap`."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.machine import CPU
from qdtrace.lowered import find_programs

RNG = np.random.default_rng(2)
CUBE = RNG.normal(size=(5, 7, 3)).astype(np.float32)
XS = RNG.integers(-9, 9, 6).astype(np.float32)
YS = RNG.integers(-9, 9, 4).astype(np.float32)
KEYS = jax.random.split(jax.random.key(0), (3, 4))


def same(got: Any, want: Any) -> None:
    """Up to a rounding of other vector maths."""
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), map(jnp.asarray, jax.tree.leaves(want)), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        if jnp.issubdtype(g.dtype, jax.dtypes.prng_key):
            g, w = jax.random.key_data(g), jax.random.key_data(w)
        np.testing.assert_allclose(g, w, rtol=2e-6, atol=1e-6)


def launches(f: Any, *args: Any) -> int:
    """Tasks of all programs in a function of JAX arrays."""
    return sum(len(p.optimised_for(CPU).tasks) for p in find_programs(jax.make_jaxpr(f)(*args), CPU))


def scale(x):
    return jnp.sin(x) * 2


def pair(a, b):
    return a * b + 1, {"difference": a - b}


def until(a, limit):
    return lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] * 2, c[1] + 1), (jnp.abs(a) + 1, 0))


NESTED = {
    "two": (lambda v: v(v(scale)), (CUBE,)),
    "three": (lambda v: v(v(v(scale))), (CUBE,)),
    "axes": (lambda v: v(v(scale, 1, 1), 2, 0), (CUBE,)),
    "negative axes": (lambda v: v(v(scale, -1, -1), 1, -1), (CUBE,)),
    "pairs": (lambda v: v(v(pair, (None, 0)), (0, None)), (XS, YS)),
    "pairs, transposed": (lambda v: v(v(pair, (None, 0)), (0, None), 1), (XS, YS)),
    "trees": (lambda v: v(v(lambda d, s: {"x": d["a"] * s + d["b"][0]}, (0, None)), ({"a": 1, "b": 0}, None)),
              ({"a": CUBE[:, :, 0].T.copy(), "b": CUBE}, np.float32(3))),
    "own control flow": (lambda v: v(v(until, (0, None)), (None, 0)), (XS, np.float32([4, 100, 1]))),
    "keys": (lambda v: v(v(lambda k: jax.random.uniform(k, (2,)))), (KEYS,)),
    "new keys": (lambda v: v(v(jax.random.split, out_axes=1)), (KEYS,)),
    "lambda": (lambda v: v(lambda r: v(scale)(r)), (CUBE,)),
    "lambda with a captured array": (lambda v: v(lambda a: v(lambda b: pair(a, b))(YS)), (XS,)),
    "three lambdas": (lambda v: v(lambda a: v(lambda b: v(lambda c: a * b - c)(XS))(YS)), (XS,)),
    "lambda that turns its argument": (lambda v: v(lambda m: v(scale, out_axes=1)(m.T)), (CUBE,)),
    "lambda with a range": (lambda v: v(lambda a: v(lambda k: a + k)(jnp.arange(5.0))), (XS,)),
    "lambda of two arguments": (lambda v: v(lambda r, s: v(pair, (0, None))(r, s)), (CUBE[0], YS[0] + CUBE[1, :, 0])),
    "none outside": (lambda v: v(v(lambda a, b: (a + b, b), (None, 0)), (0, None), (0, None)), (XS, YS)),
    "none inside": (lambda v: v(v(lambda a, b: (a + b, a), (None, 0), (0, None)), (0, None)), (XS, YS)),
}  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("name", NESTED)
def test_is_one_task_over_the_product(name: str) -> None:
    make, args = NESTED[name]
    same(make(qd.vmap)(*args), make(jax.vmap)(*args))
    assert launches(make(qd.vmap), *args) == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["two", "axes", "pairs", "lambda", "own control flow", "none inside"])
def test_under_jax_vmap(name: str, compiled: bool) -> None:
    """The outermost level by JAX: still one task."""
    make, args = NESTED[name]
    stacked = [np.stack([a, a + 1]) for a in args]
    f = jax.vmap(make(qd.vmap))
    same((jax.jit(f) if compiled else f)(*stacked), jax.vmap(make(jax.vmap))(*stacked))
    assert launches(f, *stacked) == 1


@pytest.mark.full
def test_under_two_of_jax_with_shared_arguments() -> None:
    f = jax.vmap(jax.vmap(qd.vmap(pair, (None, 0)), (0, None)), (None, 0))
    args = (XS, RNG.normal(size=(2, 4)).astype(np.float32))
    same(f(*args), jax.vmap(jax.vmap(jax.vmap(pair, (None, 0)), (0, None)), (None, 0))(*args))
    assert launches(f, *args) == 1


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0), (1, 1), (3, 17), (17, 3)])
def test_sizes(sizes: tuple[int, int]) -> None:
    x = np.arange(sizes[0] * sizes[1], dtype=np.int32).reshape(sizes)
    np.testing.assert_array_equal(qd.vmap(qd.vmap(lambda v: v * 3))(x), x * 3)


@pytest.mark.full
def test_work_in_between_is_not_repeated() -> None:
    """A function that computes before it calls is one task over its own batch, and `jax.vmap` in its lanes."""

    def outer(v):
        return lambda r: v(lambda b: b + jnp.sum(r))(r * 2)

    f = qd.vmap(outer(qd.vmap))
    same(f(CUBE[0]), jax.vmap(outer(jax.vmap))(CUBE[0]))
    (task,) = f.jitted.lower(CUBE[0]).tasks
    assert task.bounds == (0, 7)


MIDDLE = {
    "result is used": lambda v: lambda r: jnp.sum(v(scale)(r)),
    "twice": lambda v: lambda r: v(scale)(r) + v(jnp.abs)(r),
    "two results": lambda v: lambda r: (v(scale)(r), r),
    "derivative": lambda v: lambda r: jax.grad(lambda x: jnp.sum(v(jnp.sin)(x)))(r),
    "loop": lambda v: lambda r: lax.fori_loop(0, 3, lambda _, x: v(lambda y: y * 0.5)(x), r),
    "helper": lambda v: jax.jit(lambda r: v(scale)(r)),
    "jax.vmap": lambda v: jax.vmap(v(scale), 0),
}


@pytest.mark.parametrize("name", MIDDLE)
def test_in_a_lane(name: str) -> None:
    data = CUBE if name == "jax.vmap" else CUBE[0]
    f = qd.vmap(MIDDLE[name](qd.vmap))
    same(f(data), jax.vmap(MIDDLE[name](jax.vmap))(data))
    with qd.options(array_mapping="lanes"):  # a GPU leaves arithmetic on rows to XLA
        assert launches(qd.vmap(MIDDLE[name](qd.vmap)), data) == 1


def test_in_a_loop() -> None:
    @qd.jit
    def f(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = jnp.sum(qd.vmap(lambda v: v * x[i])(jnp.arange(3.0)))
        return out

    np.testing.assert_array_equal(f(XS), XS * 3)


def test_function_that_calls_another_vmap_only_once() -> None:
    calls = []

    def f(r):
        calls.append(1)
        return qd.vmap(scale)(r) if len(calls) == 1 else scale(r)

    with pytest.raises(qd.TraceValueError, match=r"called another qd\.vmap the first time") as caught:
        qd.vmap(f)(CUBE[0])
    assert caught.value.help == "let what the function does depend on its arguments only"


NONE = {
    "constant": (lambda a: (a, 3.0), (0, None), 0, (XS,)),
    "argument": (lambda a, b: (a + b, b), (0, None), (0, None), (XS, YS)),
    "all": (lambda a, b: b * 2, None, (0, None), (XS, YS)),
    "tree": (lambda a, b: {"x": a * b[0], "y": [b, b + 1]}, {"x": 0, "y": None}, (0, None), (XS, YS)),
    "key": (lambda a, k: (a, jax.random.split(k)), (0, None), (0, None), (XS, KEYS[0, 0])),
}


@pytest.mark.parametrize("name", NONE)
def test_results_that_are_not_mapped(name: str) -> None:
    f, out_axes, in_axes, args = NONE[name]
    same(qd.vmap(f, in_axes, out_axes)(*args), jax.vmap(f, in_axes, out_axes)(*args))


def test_python_numbers_stay_weak() -> None:
    f = lambda a, s: a * s  # noqa: E731
    x = XS.astype(jnp.bfloat16)
    assert qd.vmap(f, (0, None))(x, 2.0).dtype == jax.vmap(f, (0, None))(x, 2.0).dtype == jnp.bfloat16


EMPTY = {
    "inner": (lambda v: v(lambda row: v(jnp.sin)(row)), (3, 0)),
    "outer": (lambda v: v(lambda row: v(jnp.sin)(row)), (0, 3)),
    "joined": (lambda v: v(v(jnp.sin)), (3, 0)),
    "rows": (lambda v: v(lambda rows: v(lambda row: row.sum())(rows)), (3, 0, 2)),
    "rows without elements": (lambda v: v(lambda rows: v(lambda row: row.sum())(rows)), (3, 2, 0)),
    "an axis behind": (lambda v: v(lambda rows: v(jnp.max, in_axes=1, out_axes=0)(rows), in_axes=1), (2, 3, 0)),
    "three": (lambda v: v(lambda a: v(lambda b: v(jnp.sin)(b))(a)), (3, 2, 0)),
    "made inside": (lambda v: v(lambda row: v(lambda t: t + row[0])(jnp.zeros(0))), (3, 2)),
    "keys": (lambda v: v(lambda row: v(lambda t: jax.random.key_data(jax.random.key(jnp.int32(t))))(row)), (3, 0)),
    "no lane": (lambda v: v(lambda row: jax.random.key(jnp.int32(row[0]))), (0, 2)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_batches_without_elements(name: str) -> None:
    make, shape = EMPTY[name]
    got, wanted = make(qd.vmap)(jnp.zeros(shape)), make(jax.vmap)(jnp.zeros(shape))
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    if wanted.size:
        np.testing.assert_array_equal(got, wanted)
