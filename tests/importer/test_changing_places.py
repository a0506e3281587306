"""Loops whose carried arrays change places: values and both derivatives against NumPy, and single cases of aliases."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import qdtrace as qd
from tests.importer.changing_places import Cells, Exchange, Lax, arguments, as_lane, by_numpy, drawn_exchange
from tests.importer.harness import check
from tests.selection import drawn

LANES = 3
WAYS = ("value", "jvp", "vjp", "vmap")
TOGETHER = 6
"""Programs that are compiled as one, which takes less time."""
Case = tuple[Exchange, np.ndarray, np.ndarray]


def case(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    program = drawn_exchange(rng)
    return (program, *arguments(program, LANES, rng))


def in_a_body(seed: int) -> Case:
    program, *_ = case(seed)
    program = replace(program, loop=("constant", "traced", "while")[seed % 3])
    return (program, *arguments(program, LANES, np.random.default_rng(seed)))


def run(cases: Iterable[Case], way: str, lib: Any = Lax) -> None:
    cases = list(cases)
    lanes = [as_lane(program, lib) for program, _, _ in cases]
    limits = [limit for _, _, limit in cases]
    xs = [x if x.dtype.kind != "i" or way in ("value", "vmap") else x.astype(np.float32) for _, x, _ in cases]
    f = qd.vmap(lambda xs, limits: [lane(*one) for lane, *one in zip(lanes, xs, limits, strict=True)])
    if way == "vmap":
        twice = lambda args: [np.stack([a, a[::-1]]) for a in args]  # noqa: E731
        got = jax.vmap(f)(twice(xs), twice(limits))
        want = [[np.stack([w, w[::-1]]) for w in by_numpy(p, x, n)] for p, x, n in cases]
    else:
        got = f(xs, limits) if way == "value" else None
        want = [by_numpy(p, x, n) for (p, _, n), x in zip(cases, xs, strict=True)]
    if got is not None:
        for (program, _, _), ours, right in zip(cases, got, want, strict=True):
            for a, b in zip(jax.tree.leaves(ours), right, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=str(program))
        return
    # The programs are linear, so a difference is a derivative.
    rng = np.random.default_rng(len(cases))
    steps = [rng.integers(-4, 5, x.shape).astype(x.dtype) for x in xs]
    moved = [by_numpy(p, x + t, n) for (p, _, n), x, t in zip(cases, xs, steps, strict=True)]
    slopes = [[b - a for a, b in zip(*both, strict=True)] for both in zip(want, moved, strict=True)]
    g = lambda xs: [jax.tree.leaves(one) for one in f(xs, limits)]  # noqa: E731
    if way == "jvp":
        tangents = jax.jvp(g, (xs,), (steps,))[1]
        for (program, _, _), ours, right in zip(cases, tangents, slopes, strict=True):
            for a, b in zip(ours, right, strict=True):
                np.testing.assert_array_equal(a, b, err_msg=str(program))
        return
    weights = [[rng.integers(-4, 5, a.shape).astype(a.dtype) for a in right] for right in want]
    (back,) = jax.vjp(g, xs)[1](jax.tree.map(jnp.asarray, weights))
    for (program, _, _), ours, t, ws, right in zip(cases, back, steps, weights, slopes, strict=True):
        inner = sum(np.sum(w.astype(complex) * s) for w, s in zip(ws, right, strict=True))
        assert inner == np.sum(np.asarray(ours, complex) * t), program


@pytest.mark.sample(full=2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.full
def test_random_programs(way):
    for first in range(drawn(2)):
        run((case(10 * first + k + 1000 * WAYS.index(way)) for k in range(TOGETHER)), way)


@pytest.mark.full
@pytest.mark.parametrize("way", ["value", "vjp"])
def test_random_programs_of_private_arrays(way):
    for first in range(drawn(3)):
        run((in_a_body(10 * first + k + 500 * WAYS.index(way)) for k in range(2)), way, Cells)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(30))
def test_many_random_programs_of_private_arrays(part):
    for first in range(20_000 + 30 * part, 20_030 + 30 * part, 3):
        run(map(in_a_body, range(first, first + 3)), WAYS[first // 3 % 3], Cells)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(50))
def test_many_random_programs(part):
    for first in range(10_000 + 100 * part, 10_100 + 100 * part, TOGETHER):
        run(map(case, range(first, min(first + TOGETHER, 10_100 + 100 * part))), WAYS[first // TOGETHER % len(WAYS)])


@pytest.mark.parametrize("size", [20, 300])
def test_three_that_rotate_need_one_copy(size):
    def f(x):
        return lax.fori_loop(0, 5, lambda i, s: (s[1], s[2], s[0].at[i].add(7.0)), (x, 2 * x, 3 * x))

    x = np.arange(2.0 * size, dtype=np.float32).reshape(2, size)
    program = check(f, x, exact=True)
    if size == 300:
        assert program.count("cell") == 4


def test_a_value_of_two_names_is_two_carries():
    def f(x):
        a = jnp.cumsum(x)
        b = jax.jit(lambda t: t)(a)
        return lax.fori_loop(0, 3, lambda i, s: (s[0].at[i].add(1.0), s[1].at[i].multiply(3.0)), (a, b))

    check(f, np.ones((2, 300), np.float32), exact=True)


def test_a_value_of_two_names_is_updated_by_itself():
    def f(x, order):
        a = jnp.cumsum(x)
        b = jax.jit(lambda t: t)(a)
        return a.at[order].set(b)

    order = np.stack([np.arange(300)[::-1], np.roll(np.arange(300), 1)]).astype(np.int32)
    check(f, np.ones((2, 300), np.float32), order, exact=True)


@pytest.mark.full
def test_one_result_for_two_carries_under_a_mask():
    def f(x, n):
        def one(x, n):
            step = lambda t: (t[0] + 1, t[1].at[0].add(1.0), *[t[1] + t[2]] * 2)  # noqa: E731
            return lax.while_loop(lambda t: t[0] < n, step, (0, x, x, 2 * x))

        return jax.vmap(one)(x, n)

    x = np.arange(1200, dtype=np.float32).reshape(2, 2, 300)
    check(f, x, np.array([[1, 3], [2, 0]], np.int32), exact=True)
