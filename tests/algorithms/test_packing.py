"""`qd.compact` and `qd.segments` against NumPy: sizes, derivatives, rows, lanes, dtypes, and what is refused."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from qdtrace.algorithms.packed import LEAST, by_words, pack_rows

DRAW = np.random.default_rng(0)
LONG = LEAST + 77
MASK = DRAW.integers(0, 2, LONG).astype(bool)
X = DRAW.normal(size=LONG).astype(np.float32)
WAYS = {"by parts": pack_rows, "by words": by_words}
"""What a CPU does, and a GPU."""
WEIGHTS = DRAW.normal(size=LONG).astype(np.float32)


def by_numpy(mask: Any, x: Any, size: int) -> Any:
    kept = x[mask][:size]
    return np.concatenate([kept, np.zeros((size - len(kept), *x.shape[1:]), x.dtype)])


@pytest.mark.full
@pytest.mark.parametrize(("count", "size"), [(0, None), (0, 3), (9, None), (9, 2), (9, 12), (LONG, None), (LONG, 100)])
def test_compact_is_numpys(count: int, size: int | None) -> None:
    rows = DRAW.integers(0, 9, (count, 2, 3)).astype(np.int32)
    found, total = qd.compact(MASK[:count], {"x": X[:count], "rows": rows}, size)
    room = count if size is None else size
    assert int(total) == MASK[:count].sum()
    np.testing.assert_array_equal(found["x"], by_numpy(MASK[:count], X[:count], room))
    np.testing.assert_array_equal(found["rows"], by_numpy(MASK[:count], rows, room))


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "bfloat16", "complex64"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.99, 1.0])
@pytest.mark.parametrize("size", [30_000, 40_000, 50_000])
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_every_dtype(way: str, dtype: str, share: float, size: int) -> None:
    mask, x = DRAW.random((2, 40_000)) < share, DRAW.normal(size=(2, 40_000, 1)).astype(jnp.dtype(dtype))
    count, out = WAYS[way](jnp.asarray(mask), jnp.asarray(x), size=size)
    for r in range(2):
        assert int(count[r]) == mask[r].sum()
        np.testing.assert_array_equal(out[r], by_numpy(mask[r], x[r], size))


@pytest.mark.full
@pytest.mark.parametrize("count", [4096, 16387, 100_001])
@pytest.mark.parametrize("width", [2, 9])
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_several_elements(way: str, count: int, width: int) -> None:
    mask, x = DRAW.integers(0, 2, (1, count)).astype(bool), DRAW.integers(0, 99, (1, count, width))
    xs = (jnp.asarray(v) for v in (mask, x, np.arange(count)[None, :, None]))
    total, out, places = WAYS[way](*xs, size=count // 2)
    assert int(total[0]) == mask.sum()
    np.testing.assert_array_equal(out[0], by_numpy(mask[0], x[0], count // 2))
    np.testing.assert_array_equal(places[0, :, 0], by_numpy(mask[0], np.arange(count), count // 2))


@pytest.mark.full
@pytest.mark.parametrize("count", [50, LONG])
def test_derivatives_move_with_the_elements(count: int) -> None:
    mask, x, w = MASK[:count], X[:count], WEIGHTS[: count // 3]
    wanted = np.zeros_like(x)
    kept = np.flatnonzero(mask)[: count // 3]
    wanted[kept] = w[: len(kept)]

    def f(x: Any) -> Any:
        return qd.compact(mask, (x, jnp.arange(count)), count // 3)[0][0]

    np.testing.assert_array_equal(jax.jit(jax.grad(lambda x: (w * f(x)).sum()))(x), wanted)
    np.testing.assert_array_equal(jax.jvp(f, (x,), (WEIGHTS[:count],))[1], by_numpy(mask, WEIGHTS[:count], count // 3))


@pytest.mark.full
@pytest.mark.parametrize("count", [5, LONG])
def test_vmap_packs_rows(count: int) -> None:
    mask, x = DRAW.integers(0, 2, (3, count)).astype(bool), DRAW.normal(size=(3, count)).astype(np.float32)
    by_rows, totals = jax.vmap(qd.compact)(mask, x)
    by_masks, _ = jax.vmap(qd.compact, (0, None))(mask, x[0])
    for r in range(3):
        assert int(totals[r]) == mask[r].sum()
        np.testing.assert_array_equal(by_rows[r], by_numpy(mask[r], x[r], count))
        np.testing.assert_array_equal(by_masks[r], by_numpy(mask[r], x[0], count))


@pytest.mark.parametrize("transform", [qd.vmap, jax.vmap])
@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (2, 4)])
def test_derivatives_without_elements_or_room(shape: tuple[int, int], transform: Any) -> None:
    mask, x = jnp.ones(shape, jnp.bool_), jnp.ones(shape)
    for size in (0, 2):
        slopes = jax.grad(lambda x, n=size: transform(lambda m, x: qd.compact(m, x, n)[0].sum())(mask, x).sum())(x)
        np.testing.assert_array_equal(slopes, np.broadcast_to(np.arange(shape[1]) < size, shape))


@pytest.mark.full
def test_lanes_pack() -> None:
    found, totals = qd.vmap(qd.compact)(MASK[:50].reshape(10, 5), X[:50].reshape(10, 5))
    wanted, counts = jax.vmap(qd.compact)(MASK[:50].reshape(10, 5), X[:50].reshape(10, 5))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(totals, counts)


@pytest.mark.full
def test_the_count_bounds_a_loop() -> None:
    @qd.jit
    def sum_of_roots(x: Any) -> Any:
        kept, count = qd.compact(x[...] > 0, x)
        total = qd.zeros((), x.dtype)
        for i in qd.range(count):
            total[()] += jnp.sqrt(kept[i])
        return total

    np.testing.assert_allclose(sum_of_roots(X), np.sqrt(X[X > 0]).sum(), rtol=1e-5)  # sums of 2000 numbers
    slopes = jax.grad(sum_of_roots)(X)
    np.testing.assert_allclose(slopes, np.where(X > 0, 0.5 / np.sqrt(np.abs(X)), 0), rtol=1e-5)  # a root and a quotient


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "int8", "uint32", "int16"])
@pytest.mark.parametrize("count", [0, 1, 200])
def test_segments_are_numpys(dtype: str, count: int) -> None:
    keys = np.sort(DRAW.integers(0, 100, count)).astype(dtype)
    np.testing.assert_array_equal(qd.segments(keys, 300), np.searchsorted(keys, np.arange(301)))


def test_segments_of_rows_and_of_nothing() -> None:
    keys = jnp.array([[0, 1, 1], [1, 2, 2]])
    assert jax.vmap(lambda keys: qd.segments(keys, 3))(keys).tolist() == [[0, 1, 3, 3], [0, 0, 1, 3]]
    assert qd.segments(jnp.zeros(0, jnp.int32), 0).tolist() == [0]


@pytest.mark.parametrize(
    ("keys", "n", "told"),
    [
        ([0, 2, 1], 3, "needs sorted keys"),
        ([-1, 0], 3, "needs keys below n = 3, from 0"),
        ([0, 3], 3, "needs keys below n = 3, from 0"),
        ([0], 0, "needs keys below n = 0, from 0"),
    ],
)
def test_keys_that_are_no_segments(keys: list[int], n: int, told: str) -> None:
    @qd.jit
    def of_rows(rows: Any) -> Any:
        out = qd.empty((rows.shape[0], n + 1), jnp.int32)
        for i in qd.range(rows.shape[0]):
            out[i] = qd.segments(rows[i], n)
        return out

    for call in (lambda: qd.segments(jnp.array(keys), n), lambda: of_rows(jnp.array([keys, keys]))):
        with pytest.raises(qd.CheckError, match=told):
            jax.block_until_ready(call())


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32"])
def test_segments_in_a_loop(dtype: str) -> None:
    @qd.jit
    def of_rows(rows: Any) -> Any:
        out = qd.empty((rows.shape[0], 6), jnp.int32)
        for i in qd.range(rows.shape[0]):
            out[i] = qd.segments(rows[i], 5)
        return out

    rows = jnp.sort(jnp.asarray(np.random.default_rng(0).integers(0, 5, (4, 7)), dtype), axis=1)
    for given in (rows, rows[:, :0]):
        np.testing.assert_array_equal(of_rows(given), jnp.stack([qd.segments(row, 5) for row in given]))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: qd.compact(X, X), "needs a mask of bools, got float32"),
        (lambda: qd.compact(MASK[:10].reshape(2, 5), X), r"needs an array with one axis, got shape \(2, 5\)"),
        (lambda: qd.compact(MASK, X[:3]), r"a first axis as long as the mask \(4173\), got shape \(3,\)"),
        (lambda: qd.compact(MASK, X, -1), "size= of qd.compact needs 0 to 2147483647, got -1"),
        (lambda: jax.jit(lambda n: qd.compact(MASK, X, n))(3), "needs a static integer, got a traced value"),
        (lambda: qd.segments(X, 3), "needs integers, got float32"),
        (lambda: qd.segments([0], -1), "n of qd.segments needs 0 to 2147483647, got -1"),
    ],
)
def test_what_is_refused(call: Any, told: str) -> None:
    with pytest.raises(qd.QdError, match=told) as error:
        call()
    assert error.value.loc is not None
    assert error.value.loc.file == __file__
