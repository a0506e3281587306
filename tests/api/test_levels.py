"""Nested `qd.vmap`: what only one level differs in runs for its lanes alone; products of two levels are XLA's."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.analysis.machine import CPU
from qdtrace.lowered import find_programs

RNG = np.random.default_rng(5)
XS = RNG.normal(size=(300, 6)).astype(np.float32)
YS = RNG.normal(size=(370, 6)).astype(np.float32)
W = RNG.normal(size=(6, 4)).astype(np.float32)
PAIRS = ((None, 0), (0, None))


def features(x: Any) -> Any:
    return jnp.tanh(x @ W)


def trips(x: Any) -> Any:
    return lax.while_loop(lambda s: s[0] < 9.0, lambda s: (s[0] * 1.5, s[1] + 1.0), (jnp.abs(x[0]) + 0.1, 0.0))[1]


def steps(x: Any) -> Any:
    return lax.scan(lambda s, v: (jnp.sin(s + v), None), jnp.float32(0), x)[0]


def pairs(vmap: Callable[..., Any], f: Callable[..., Any]) -> Callable[..., Any]:
    return vmap(vmap(f, PAIRS[0]), PAIRS[1])


def same(got: Any, want: Any, rtol: float = 2e-5) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=rtol, atol=rtol * np.max(np.abs(w), initial=1.0))


def work(f: Callable[..., Any], *args: Any) -> list[Any]:
    """Iterations of the tasks, or what computes them."""
    return [task.codegen if task.codegen == "xla" else task.bounds[1] for task in qd.jit(f).lower(*args).tasks]


APART = {
    "both": (lambda x, y: jnp.exp(-jnp.sum((features(x) - features(y)) ** 2)), [300, 370, 111_000]),
    "the first": (lambda x, y: steps(x) * y[1], [300, 111_000]),
    "the second": (lambda x, y: steps(y) + x[0], [370, 111_000]),
    "loops of its own trips": (lambda x, y: trips(x) * y[2], [300, 111_000]),
    "a result of one": (lambda x, y: (steps(x), {"sum": x[0] + y[0]}), [300, 111_000]),
    "none": (lambda x, y: jnp.sin(x[0] * y[0]), [111_000]),
    "little": (lambda x, y: (x[0] + 1.0) * y[0], [111_000]),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", APART)
def test_one_level_runs_for_its_lanes(name: str) -> None:
    f, wanted = APART[name]
    assert work(lambda x, y: pairs(qd.vmap, f)(x, y), XS, YS) == wanted
    same(pairs(qd.vmap, f)(XS, YS), pairs(jax.vmap, f)(XS, YS))
    with qd.options(array_mapping="lanes"):
        assert work(lambda x, y: pairs(qd.vmap, f)(x, y), XS, YS) == wanted[-1:]


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in APART if name != "loops of its own trips"])
def test_derivatives_add_up_over_the_other_level(name: str) -> None:
    f, _ = APART[name]

    def slope(vmap: Callable[..., Any]) -> Any:
        def loss(x: Any, y: Any) -> Any:
            return sum(jnp.sum(v**2) for v in jax.tree.leaves(pairs(vmap, f)(x, y)))

        return jax.grad(loss, (0, 1))(XS[:70], YS[:90])

    same(slope(qd.vmap), slope(jax.vmap), 1e-4)


PRODUCTS = {
    "gram": (lambda x, y: x @ y, ["xla"]),
    "captured weights": (lambda x, y: (x * W[:, 0]) @ y, ["xla"]),
    "power": (lambda x, y: (x @ y + 1) ** 3, ["xla"]),
    "features": (lambda x, y: features(x) @ features(y), [300, 370, "xla"]),
    "in a call": (lambda x, y: jax.nn.relu(jax.jit(jnp.dot)(x, y)), ["xla"]),
    "of one level": (lambda x, y: (x @ x) * y[0], [111_000]),
    "with sines": (lambda x, y: jnp.sin(x @ y), [111_000]),
    "with a loop": (lambda x, y: trips(x * y) * (x @ y), [111_000]),
}


@pytest.mark.cpu
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_two_levels_are_products_of_matrices(name: str) -> None:
    f, wanted = PRODUCTS[name]
    found = work(lambda x, y: pairs(qd.vmap, f)(x, y), XS, YS)
    assert [n for n in found if n != "xla"] == [n for n in wanted if n != "xla"]
    same(pairs(qd.vmap, f)(XS, YS), pairs(jax.vmap, f)(XS, YS), 1e-4)


@pytest.mark.full
@pytest.mark.parametrize("f", [lambda x, y: features(x) @ features(y), lambda x, y: steps(x) * jnp.sin(y[0] * x[1])])
@pytest.mark.parametrize("out", [(0, 0), (1, 0), (0, 1), (-1, -1)])
def test_axes_of_arguments_and_results(f: Callable[..., Any], out: tuple[int, int]) -> None:
    def both(vmap: Callable[..., Any]) -> Any:
        def rows(x: Any, y: Any) -> Any:
            return jnp.stack([f(x, y), y[1]])

        inner = vmap(rows, (None, -1), out[0])
        return vmap(inner, (1, None), out[1])(XS.T.copy(), YS.T.copy())

    same(both(qd.vmap), both(jax.vmap), 1e-4)


@pytest.mark.full
def test_three_levels_and_what_none_differ_in() -> None:
    def f(x: Any, y: Any, z: Any, w: Any) -> Any:
        return steps(x) * jnp.sin(steps(y) + z) + steps(jnp.tile(w, 50))

    def all_of(vmap: Callable[..., Any]) -> Callable[..., Any]:
        return vmap(vmap(vmap(f, (None, None, 0, None)), (None, 0, None, None)), (0, None, None, None))

    args = XS[:40], YS[:50], XS[:60, 0], W[0]
    assert work(lambda *a: all_of(qd.vmap)(*a), *args) == [1, 40, 50, 120_000]
    same(all_of(qd.vmap)(*args), all_of(jax.vmap)(*args))


@pytest.mark.full
def test_forms_of_arguments_and_results() -> None:
    """Trees, keyword arguments, integers, random keys, and results that one level does not map."""
    keys = jax.random.split(jax.random.key(1), 300)

    def f(d: Any, y: Any, *, n: Any) -> Any:
        u = jax.random.normal(d["key"], (3,)).sum()
        return {"u": u * y[0], "n": n + 1, "k": (steps(y) > u).astype(int)}, steps(y)

    def both(vmap: Callable[..., Any]) -> Any:
        inner = vmap(f, ({"key": None, "x": None}, 0), (0, 0))
        outer = vmap(inner, ({"key": 0, "x": None}, None), (0, None))
        return outer({"key": keys, "x": 3.0}, YS, n=np.arange(300 * 370).reshape(300, 370))

    same(both(qd.vmap), both(jax.vmap))


def test_no_lanes_and_one() -> None:
    for n, m in ((0, 4), (4, 0), (1, 1), (1, 370)):
        for f in (APART["both"][0], PRODUCTS["gram"][0]):
            same(pairs(qd.vmap, f)(XS[:n], YS[:m]), pairs(jax.vmap, f)(XS[:n], YS[:m]), 1e-4)


def iterations(f: Callable[..., Any], *args: Any) -> list[int]:
    """Iterations of the tasks of all programs in a function of JAX arrays."""
    programs = find_programs(jax.make_jaxpr(f)(*args), CPU)
    bounds = [static_bounds(task) for p in programs for task in p.optimised_for(CPU).tasks]
    return [found[1] for found in bounds if found is not None]


def along(vmap: Callable[..., Any], f: Callable[..., Any], x: Any, y: Any) -> Any:
    return vmap(lambda a: vmap(lambda b: f(a, b), 1, -1)(y), 1, 0)(x)


CALLERS = {
    "a lambda between": lambda v, f, x, y: v(lambda a: v(lambda b: f(a, b))(y))(x),
    "arguments of the outer one": lambda v, f, x, y: v(lambda a, c: v(lambda b: f(a, b))(c), (0, None))(x, y),
    "the other way": lambda v, f, x, y: v(lambda b: v(lambda a: f(a, b))(x))(y),
    "both handed on": lambda v, f, x, y: v(lambda a, c: v(f, (None, 0))(a, c), (0, None))(x, y),
    "axes": lambda v, f, x, y: along(v, f, x.T, y.T),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CALLERS)
@pytest.mark.parametrize("f", [APART["both"], PRODUCTS["features"]], ids=["distances", "products"])
def test_functions_between_the_maps(name: str, f: Any) -> None:
    """What they hand on as it is keeps its levels."""
    call = CALLERS[name]
    loops = iterations(lambda x, y: call(qd.vmap, f[0], x, y), XS, YS)
    assert sorted(loops)[:2] == [300, 370]
    same(call(qd.vmap, f[0], XS, YS), call(jax.vmap, f[0], XS, YS), 1e-4)

    def slope(vmap: Callable[..., Any]) -> Any:
        return jax.grad(lambda x, y: jnp.sum(call(vmap, f[0], x, y) ** 2), (0, 1))(XS[:50], YS[:60])

    same(slope(qd.vmap), slope(jax.vmap), 1e-4)


@pytest.mark.full
def test_what_functions_between_the_maps_compute_stays_with_pairs() -> None:
    def all_of(vmap: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, y: vmap(lambda a: vmap(lambda b: steps(a[:3]) * b[0])(y[::-1]))(x)

    same(all_of(qd.vmap)(XS, YS), all_of(jax.vmap)(XS, YS))


@pytest.mark.full
def test_three_maps_with_functions_between() -> None:
    def all_of(vmap: Callable[..., Any], x: Any, y: Any, z: Any) -> Any:
        return vmap(lambda a: vmap(lambda b: vmap(lambda c: steps(a) * jnp.sin(steps(b) + c))(z))(y))(x)

    args = XS[:40], YS[:50], XS[:60, 0]
    assert iterations(lambda *a: all_of(qd.vmap, *a), *args) == [40, 50, 120_000]
    same(all_of(qd.vmap, *args), all_of(jax.vmap, *args))
