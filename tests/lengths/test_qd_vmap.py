"""`qd.vmap` in functions with `sizes="any"`: the number of elements is a length that nobody has to trace again."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.lengths.test_any_length import added, met, same_bits

pytestmark = pytest.mark.cpu
FIRST = (20, 31, 42, 45)
LENGTHS = (1, 2, 3, 7, 16, 17, 33, 64, 0, 100, 15)


def halved(v: Any) -> Any:
    return jax.lax.while_loop(lambda s: s > 1, lambda s: s / 2, v)


def vector(n: int) -> Any:
    return jnp.arange(n, dtype=jnp.float32) * 1.5 - 3


def rows(n: int, width: int = 3) -> Any:
    return vector(n * width).reshape(n, width)


def _of_one(x: Any) -> Any:
    return qd.vmap(halved)(x)


def _made_anew(x: Any) -> Any:
    n = x.shape[0]
    return qd.vmap(lambda v: halved(v) * n + n // 3 + (1 if n > 40 else 2))(x)


def _twice(x: Any) -> Any:
    y = qd.vmap(lambda v, w: (halved(v) + w, w > v))(x, x)
    return qd.vmap(halved)(y[0]), y


def _two_arrays(x: Any) -> Any:
    y = qd.zeros(x.shape, jnp.int32)
    for i in qd.range(x.shape[0]):
        y[i] = i % 5
    return qd.vmap(lambda v, k: jax.lax.fori_loop(0, k, lambda _, s: s * 0.5 + 1, v))(x, y)


def _then_loops(x: Any) -> Any:
    y = qd.vmap(halved)(x)
    for i in qd.range(y.shape[0] // 2):
        y[y.shape[0] - 1 - i] += y[i] + x[i]
    return y, x


def _by_number(x: Any) -> Any:
    y = qd.vmap(halved)(x)
    for i in qd.range(y.shape[0]):
        y[i] += 1 if y.shape[0] == 33 else 2
    return y


def _shared_whole(x: Any) -> Any:
    return qd.vmap(lambda v, w: halved(v) * w.shape[0] + w.max(initial=2), (0, None))(x, x)


def _counts(x: Any) -> Any:
    return qd.vmap(lambda v: jax.lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] / 2, s[1] + 1), (v, 0))[1])(x)


def _named(x: Any) -> Any:
    return qd.vmap(lambda v: halved(v) + jax.lax.axis_size("b"), axis_name="b")(x)


def _sized(x: Any) -> Any:
    return qd.vmap(halved, axis_size=x.shape[0])(x)


def _keyword(x: Any) -> Any:
    return qd.vmap(lambda v, *, w: {"a": halved(v) - w})(x, w=x)


def _in_a_lane(x: Any) -> Any:
    for i in qd.range(x.shape[0]):
        x[i] = qd.vmap(lambda v: v * 2 + x.shape[0])(jnp.arange(3.0)).sum() + x[i]
    return x


def _by_lanes(x: Any) -> Any:
    def f(v: Any) -> Any:
        return jax.lax.fori_loop(0, x.shape[0], lambda j, s: s * 0.5 + j, v)

    return qd.vmap(f)(x)


OF_VECTORS = (
    _of_one, _made_anew, _twice, _two_arrays, _then_loops, _by_number, _shared_whole, _counts, _named, _sized,
    _keyword, _in_a_lane, _by_lanes,
)  # fmt: skip


def _rows(x: Any) -> Any:
    return qd.vmap(lambda r: (halved(r[0]) + r.sum(), r * r.shape[0]))(x)


def _columns(x: Any) -> Any:
    return qd.vmap(lambda r: halved(r[0]) + r[-1], 1)(x)


def _out_behind(x: Any) -> Any:
    return qd.vmap(lambda r: r * halved(r[1]), 0, 1)(x)


def _nested(x: Any) -> Any:
    return qd.vmap(qd.vmap(halved))(x)


def _nested_other_way(x: Any) -> Any:
    return qd.vmap(qd.vmap(halved), 1, 1)(x)


def _outer(x: Any) -> Any:
    return qd.vmap(lambda r: qd.vmap(lambda v, w: halved(v) + w, (0, None))(r, r[0]))(x)


OF_ROWS = (_rows, _columns, _out_behind, _nested, _nested_other_way, _outer)
TRACED = (_shared_whole, _counts, _named, _sized, _in_a_lane, _outer)
"""Functions that are traced at each length: they look at a number, or copy a part of the whole array."""


@pytest.mark.full
@pytest.mark.sample(7, full=1)
@pytest.mark.parametrize("f", [*OF_VECTORS, *OF_ROWS], ids=lambda f: f.__name__)
def test_values_and_traces(f: Any) -> None:
    one, each = qd.jit(f, sizes="any"), qd.jit(f)
    of = vector if f in OF_VECTORS else rows
    met(one, *((of(n),) for n in FIRST))
    for n in LENGTHS:
        if n == 0 and f in (_columns, _nested_other_way):
            continue
        try:
            want = each(of(n))
        except qd.QdError as error:
            with pytest.raises(type(error)):
                one(of(n))
            continue
        same_bits(one(of(n)), want)
    if f not in (*TRACED, _columns, _nested_other_way, _out_behind):
        for n in (50, 71, 93):
            assert added(one, of(n))[1].traces == 0


@pytest.mark.full
@pytest.mark.parametrize("width", [1, 5, 300])
def test_rows_of_functions(width: int) -> None:
    one = qd.jit(qd.vmap(lambda r, h: (halved(r[0]) * h, r[::-1])), sizes="any")
    each = jax.vmap(lambda r, h: (halved(r[0]) * h, r[::-1]))
    for n in (*FIRST, *LENGTHS):
        same_bits(one(rows(n, width), vector(n)), each(rows(n, width), vector(n)))


@pytest.mark.full
def test_lengths_that_differ() -> None:
    one = qd.jit(qd.vmap(lambda v, w: halved(v) + w), sizes="any")
    met(one, *((vector(n), vector(n)) for n in FIRST))
    assert added(one, vector(50), vector(50))[1].traces == 0
    for n, m in ((50, 51), (7, 20), (20, 7)):
        with pytest.raises(qd.QdError, match=f"one batch size, got {n}, {m}"):
            one(vector(n), vector(m))


@pytest.mark.full
def test_results_whose_type_others_decide() -> None:
    def f(v: Any) -> Any:
        return jax.lax.while_loop(lambda s: s[0] > 1, lambda s: (s[0] / 2, s[1] + 1), (v, 0))

    one = qd.jit(qd.vmap(f), sizes="any")
    for n in (*FIRST, 1, 2, 7, 0, 33):
        same_bits(one(vector(n)), jax.vmap(f)(vector(n)))
    got, work = added(one, vector(50))
    assert work.traces == 0
    assert (got[1] + jnp.int8(1)).dtype == jnp.int8


@pytest.mark.full
def test_random_keys() -> None:
    def f(key: Any, x: Any) -> Any:
        return halved(x) + jax.random.uniform(key)

    one = qd.jit(qd.vmap(f), sizes="any")
    for n in (*FIRST, 1, 2, 7, 33):
        keys = jax.random.split(jax.random.key(n), n)
        same_bits(one(keys, vector(n)), jax.vmap(f)(keys, vector(n)))


@pytest.mark.full
def test_gradients() -> None:
    @partial(qd.jit, sizes="any")
    def f(x: Any, w: Any) -> Any:
        n, total = x.shape[0], qd.zeros((), x.dtype)
        y = qd.vmap(lambda v, w: jnp.sin(v) * w / n)(x, w)
        for i in qd.range(n):
            total[()] += y[i] * x[n - 1 - i]
        return total

    one = jax.grad(f)
    for n in (*FIRST, 1, 2, 7, 33, 64):
        x, w = vector(n) / 9, vector(n)
        want = jax.grad(lambda x, w=w, n=n: jnp.sum(jnp.sin(x) * w / n * x[::-1]))(x)
        np.testing.assert_allclose(one(x, w), want, rtol=3e-5, atol=3e-5)
    assert added(one, vector(50), vector(50))[1].traces == 0


@pytest.mark.full
def test_code_that_asks_for_types() -> None:
    def f(x: Any) -> Any:
        n = x.shape[0]
        return qd.vmap(lambda v: halved(v) + (5 if type(n) is int and n > 25 else 1))(x)

    one = qd.jit(f, sizes="any")
    for n in (*FIRST, 7, 30, 50, 3):
        same_bits(one(vector(n)), jax.vmap(halved)(vector(n)) + (5 if n > 25 else 1))
