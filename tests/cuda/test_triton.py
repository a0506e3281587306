"""Kernels of Triton on a GPU: streams, sums, histograms, prefix sums and checks, against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

pytest.importorskip("triton", reason="needs the package triton")
SIZES = [1, 31, 1000, 2048, 100_003, 3_000_001]


@pytest.fixture(autouse=True)
def by_triton():
    with qd.options(codegen="triton"):
        yield


@qd.jit
def stream(x, y):
    out = qd.empty_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = 2 * x[i] + y[x.shape[0] - 1 - i]
    return out


@qd.jit
def total(x):
    out, most = qd.zeros((), x.dtype), qd.full((), -1e9, x.dtype)
    for i in qd.range(x.shape[0]):
        out[()] += x[i]
        qd.atomic_max(most, (), x[i])
    return out, most


@qd.jit
def histogram(k):
    out = qd.full(256, 3, jnp.int32)
    for i in qd.range(k.shape[0]):
        out[k[i]] += 1
    return out


@qd.jit
def beginnings(x):
    out, sum_ = qd.empty_like(x), qd.zeros((), x.dtype)
    for i in qd.range(x.shape[0], serial=True):
        sum_[...] += x[i]
        out[i] = sum_[...]
    return out


@qd.jit
def shifted(x, by):
    out = qd.zeros_like(x)
    for i in qd.range(x.shape[0]):
        out[i] = x[i + by]
    return out


def small(n: int) -> np.ndarray:
    """Numbers whose sums are exact in float32."""
    return np.random.default_rng(n).integers(-2, 3, n).astype(np.float32)


def test_all_are_made_by_triton() -> None:
    x, k = jnp.ones(5000), jnp.zeros(5000, jnp.int32)
    for function, args in ((stream, (x, x)), (total, (x,)), (histogram, (k,)), (beginnings, (x,)), (shifted, (x, 1))):
        made = [task.codegen for task in function.lower(*args, target="sm_90").tasks]
        assert made
        assert set(made) == {"triton"}


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
def test_streams(n: int) -> None:
    x, y = small(n), small(n)[::-1].copy() + 1
    assert np.array_equal(stream(x, y), 2 * x + y[::-1])
    assert np.array_equal(jax.vmap(stream)(np.stack([x, y]), np.stack([y, x]))[1], 2 * y + x[::-1])


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
def test_sums(n: int) -> None:
    out, most = total(small(n))
    assert (float(out), float(most)) == (small(n).sum(dtype=np.float64), small(n).max())
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    first = np.asarray(total(x)[0])
    np.testing.assert_allclose(first, x.sum(dtype=np.float64), rtol=1e-5, atol=1e-7 * np.abs(x).sum())
    assert all(np.asarray(total(x)[0]).tobytes() == first.tobytes() for _ in range(3))


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
def test_histograms(n: int) -> None:
    k = np.random.default_rng(n).integers(0, 256, n).astype(np.int32)
    for _ in range(2):
        assert np.array_equal(histogram(k), np.bincount(k, minlength=256) + 3)


@pytest.mark.gpu
@pytest.mark.parametrize("n", SIZES)
def test_prefix_sums(n: int) -> None:
    for _ in range(2):
        assert np.array_equal(beginnings(small(n)), np.cumsum(small(n), dtype=np.float64))


@pytest.mark.gpu
def test_calls_inside_of_a_loop_of_xla() -> None:
    x = small(100_003)
    out = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: beginnings(x) * 0 + stream(x, 0 * x) / 2, x))(x)
    assert np.array_equal(out, x)


@pytest.mark.gpu
def test_failed_checks() -> None:
    x = jnp.arange(5000.0)
    with pytest.raises(qd.BoundsError, match=r"index 5\d\d\d is out of bounds for axis 0"):
        qd.block_until_ready(shifted(x, 1000))
    assert np.array_equal(shifted(x, 0), x)
