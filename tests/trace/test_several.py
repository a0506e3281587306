"""Indices that name several elements: arrays of integers, windows at traced places, slices that go backwards."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace import TraceTypeError

SHAPE = (4, 5, 6)
X = np.arange(np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
PLACES = np.array([[0, 2, 1], [3, 1, 1], [2, 2, 0]], np.int32)


def keys(i, k, seed):
    """Indices of three axes: `i` is the iteration, `k` its row of PLACES; each kind beside each other one."""
    rng = np.random.default_rng(seed)
    kinds = [
        lambda n: i,
        lambda n: int(rng.integers(-n, n)),
        lambda n: slice(None),
        lambda n: slice(1, n),
        lambda n: slice(None, None, -1),
        lambda n: slice(n - 1, 0, -2),
        lambda n: slice(i, i + 2),
        lambda n: slice(i // 2 * 2, i // 2 * 2 + 2),
        lambda n: slice(i - i, (i + 1) * 1 - i + 2, 2),
        lambda n: k,
        lambda n: k[:, None],
        lambda n: [2, -1, 0],
    ]
    return [tuple(kinds[a](n) for a, n in zip(rng.integers(0, len(kinds), 3), SHAPE, strict=True)) for _ in range(12)]


def in_numpy(seed, i):
    return [tuple(np.asarray(k) if isinstance(k, list) else k for k in key) for key in keys(i, PLACES[i], seed)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["buffer", "local", "debug"])
def test_loads_are_those_of_numpy(kind, seed) -> None:
    want = [[X[key] for key in in_numpy(seed, i)] for i in range(3)]

    @qd.jit(options={"debug": kind == "debug"})
    def loaded(x, places):
        made = [qd.zeros((3, *w.shape)) for w in want[0]]
        for i in qd.range(3):
            content = qd.local(x[:, :, :]) if kind == "local" else x
            for b, key in zip(made, keys(i, places[i], seed), strict=True):
                b[i] = content[key]
        return made

    for k, got in enumerate(loaded(X, PLACES)):
        np.testing.assert_array_equal(got, np.stack([row[k] for row in want]))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["buffer", "local", "debug"])
def test_sums_and_stores_are_those_of_numpy(kind, seed) -> None:
    want = X.copy()
    for i in range(3):
        for n, key in enumerate(in_numpy(seed, i)):
            part = np.arange(want[key].size, dtype=np.float32).reshape(want[key].shape)
            np.add.at(want, key, part)
            if n % 3 == 2:
                want[key] = n

    @qd.jit(options={"debug": kind == "debug"})
    def changed(x, places):
        out = qd.zeros_like(x)
        for _ in qd.range(1):
            content = qd.local(x[:, :, :]) if kind == "local" else x
            for i in qd.range(3):
                for n, key in enumerate(keys(i, places[i], seed)):
                    shape = X[in_numpy(seed, 0)[n]].shape
                    content[key] += jnp.arange(np.prod(shape), dtype=x.dtype).reshape(shape)
                    if n % 3 == 2:
                        content[key] = n
            if kind == "local":
                out[:, :, :] = content.value
        return out if kind == "local" else x

    np.testing.assert_array_equal(changed(X, PLACES), want)


def test_places_that_meet_all_count() -> None:
    @qd.jit
    def scattered(ends, force):
        out, most = qd.zeros((5, 2)), qd.zeros(5)
        for e in qd.range(ends.shape[0]):
            out[ends[e], :] += force[e]
            out.at[ends[e], 1].subtract(1.0)
            most.at[ends[e]].max(force[e, 0])
        return out, most

    ends = np.array([[0, 1, 1], [1, 4, 0]], np.int32)
    force = np.arange(4, dtype=np.float32).reshape(2, 2)
    out, most = np.zeros((5, 2)), np.zeros(5)
    for e in range(2):
        np.add.at(out, ends[e], force[e])
        np.subtract.at(out, (ends[e], 1), 1)
        np.maximum.at(most, ends[e], force[e, 0])
    for got, want in zip(scattered(ends, force), (out, most), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_sum_kept_in_a_variable_is_a_store() -> None:
    @qd.jit
    def moved(x, k):
        for _ in qd.range(1):
            old = x[k]
            old += 1.0
            x[k] = 0.0
            x[k] = old
        return x

    assert moved(jnp.arange(4.0), jnp.array([3, 1])).tolist() == [0, 2, 2, 4]


def test_derivatives() -> None:
    @qd.jit
    def energy(x, triangle):
        out, force = qd.zeros(()), qd.zeros_like(x)
        for e in qd.range(triangle.shape[0]):
            corners = x[triangle[e], :]
            force[triangle[e], :] += jnp.roll(corners, 1, 0) ** 2
            out[()] += jnp.prod(x[e : e + 2, ::-1][:, 0])
        for i in qd.range(x.shape[0]):
            out[()] += jnp.sum(force[i] ** 3)
        return out

    triangle = jnp.array([[0, 1, 2], [2, 1, 3], [3, 3, 0]])
    x = jnp.linspace(0.3, 1.2, 8).reshape(4, 2)
    qd.check_grads(lambda x: energy(x, triangle), (x,), order=2)


def test_bounds_are_checked_at_each_place() -> None:
    @qd.jit
    def windows(x):
        out = qd.zeros_like(x)
        for i in qd.range(x.shape[0]):
            out[i] = jnp.sum(x[i - 1 : i + 2])
        return out

    with pytest.raises(qd.BoundsError, match="index -1 is out of bounds for axis 0 of `x`"):
        windows(jnp.arange(4.0))


def test_ends_of_any_arithmetic_are_read_once() -> None:
    @qd.jit
    def windows(x, k):
        out = qd.zeros((4, 3))
        for i in qd.range(4):
            a, b, c = i, i, k[0]
            for _ in range(12):
                a, b, c = a * a % 7, b * b % 7, c + 1
            out[i] = x[a : b + 3] + x[i + 1 : i + 4]
            out[i] += x[c : c + 3]
        return out

    x = np.arange(20.0)
    want = []
    for i in range(4):
        a = i
        for _ in range(12):
            a = a * a % 7
        want.append(x[a : a + 3] + x[i + 1 : i + 4] + x[14:17])
    np.testing.assert_array_equal(windows(jnp.asarray(x), jnp.array([2])), want)


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.int8, jnp.uint16, jnp.int16])
def test_small_integers_are_windows_once_they_are_converted(dtype) -> None:
    @partial(qd.jit, static_argnames="wide")
    def windows(x, k, wide):
        out = qd.zeros((2, 3))
        for i in qd.range(2):
            start = k[i].astype(jnp.int32) if wide else k[i]
            out[i] = x[start : start + 3]
        return out

    x, k = jnp.arange(300.0), jnp.array([3, 125], dtype)
    with pytest.raises(TraceTypeError, match=r"small integers wrap around: `k = start\.astype"):
        windows(x, k, wide=False)
    assert windows(x, k, wide=True).tolist() == [[3, 4, 5], [125, 126, 127]]


def store(body):
    @qd.jit
    def f(x, k):
        for i in qd.range(2):
            body(x, k, i)
        return x

    return f


REFUSED = [
    (lambda x, k, i: x[k[:2]], "an array of 2 integers may mean a place or 2 rows of shape"),
    (lambda x, k, i: x[i, k[0] : k[1]], "the slice of axis 1 needs a length that is known"),
    (lambda x, k, i: x[i, k[0] : k[0] + 2], "the slice of axis 1 needs a length that is known"),
    (lambda x, k, i: x[i, (q := k[0].astype(jnp.uint8)) : q + 2], "the slice of axis 1 needs a length that is known"),
    (lambda x, k, i: x[i, (q := k[0].astype(jnp.int16)) - 2 : q], "the slice of axis 1 needs a length that is known"),
    (lambda x, k, i: x[i, : i + 1], "the slice of axis 1 needs a length that is known"),
    (lambda x, k, i: x[i, i : i + 300], "an index in a loop may name 256 places, got 300"),
    (lambda x, k, i: x[i, k > 0], "the index of axis 1 must be a scalar, got shape \\(3,\\) of bools"),
    (lambda x, k, i: x[i, k * 1.5], "the index of axis 1 must be an integer, got float32"),
    (lambda x, k, i: x[k, ::0], "the slice of axis 1 needs a step other than 0"),
    (lambda x, k, i: x.__setitem__((k, 0), jnp.ones(2)), "a store needs a value of shape \\(3,\\), got \\(2,\\)"),
    (lambda x, k, i: x.at[k, 0].add(jnp.ones(2)), "an accumulation needs a value of shape \\(3,\\), got \\(2,\\)"),
]


@pytest.mark.parametrize(("body", "rule"), REFUSED, ids=range(len(REFUSED)))
def test_refused(body, rule) -> None:
    with pytest.raises(TraceTypeError, match=rule):
        store(body)(jnp.zeros((4, 400)), jnp.array([1, 0, 2]))


def test_a_flag_is_no_number() -> None:
    def body(x, k, i):
        x[k] += True

    with pytest.raises(TraceTypeError, match="needs a buffer of numbers, got bool"):
        store(body)(jnp.zeros(4, bool), jnp.array([1, 0, 2]))


def test_in_lanes_and_under_jit_and_vmap() -> None:
    @qd.jit
    def smoothed(x):
        out = qd.zeros_like(x)
        for i in qd.range(1, x.shape[0] - 1):
            out[i] = jnp.dot(x[i - 1 : i + 2], jnp.array([1.0, 2.0, 1.0]))
        return out

    x = jnp.arange(12.0).reshape(2, 6) ** 2
    want = jnp.stack([jnp.convolve(row, jnp.array([1.0, 2.0, 1.0]), mode="same") for row in x]).at[:, (0, -1)].set(0)
    np.testing.assert_allclose(jax.jit(jax.vmap(smoothed))(x), want)
