"""Indices of unsigned integers that no signed one of their width holds: too large, never negative."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import qdtrace as qd

X = np.arange(4, dtype=np.float32)
CASES = {"uint32": [3_000_000_000, 2**32 - 1, 2**31, 1], "uint64": [2**63 + 1, 2**64 - 1, 2**63, 1]}


def gather(x, k):
    out = qd.zeros_like(x)
    for i in qd.range(4):
        out[i] = x[k[i]]
    return out


def scatter(x, k):
    for i in qd.range(4):
        x[k[i]] += 1
    return x


@pytest.mark.parametrize("dtype", CASES)
def test_clipped(dtype: str) -> None:
    k = np.array(CASES[dtype], dtype)
    with jax.enable_x64(dtype == "uint64"), qd.options(bounds="clip"):
        np.testing.assert_array_equal(qd.jit(gather)(X, k), [3, 3, 3, 1])
        np.testing.assert_array_equal(qd.jit(scatter)(X, k), [0, 2, 2, 3])


@pytest.mark.parametrize("function", [gather, scatter])
@pytest.mark.parametrize("dtype", CASES)
def test_refused(function, dtype: str) -> None:
    k = np.array(CASES[dtype], dtype)
    with jax.enable_x64(dtype == "uint64"), pytest.raises(qd.BoundsError, match=r"^index \d+ is out of bounds"):
        qd.block_until_ready(qd.jit(function)(X, k))


def test_a_remainder_needs_no_limit() -> None:
    def f(p):
        h = qd.zeros(4, np.int32)
        for i in qd.range(p.shape[0]):
            h[p[i] * np.uint32(7) % np.uint32(4)] += 1
        return h

    graph = qd.jit(f).lower(np.zeros(100, np.uint32)).graph()
    assert " min " not in str(graph)
