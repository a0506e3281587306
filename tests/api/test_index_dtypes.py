"""Indices of unsigned integers that no signed one of their width holds: too large, never negative."""

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


@pytest.mark.full
@pytest.mark.parametrize("function", [gather, scatter])
@pytest.mark.parametrize("dtype", CASES)
def test_refused(function, dtype: str) -> None:
    """The message has the index as the program has it."""
    for index in CASES[dtype][:-1]:
        k = np.full(4, index, dtype)
        for options in {}, {"debug": True}, {"opt_level": 0}:
            told = index if options.get("debug") or jax.default_backend() == "cpu" else min(index, 2**47 - 1)
            said = f"^index {told} is out of bounds"
            with jax.enable_x64(dtype == "uint64"), pytest.raises(qd.BoundsError, match=said):
                qd.block_until_ready(qd.jit(function, options=options)(X, k))


LARGEST = [(dtype, end) for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
           for end in ("min", "max")]  # fmt: skip
ROWS = np.zeros((4, 300), np.float32)


def between_loops(x, k):
    return x[k[0]] + 0


def cell(x, k):
    out = qd.zeros_like(x)
    for i in qd.range(4):
        own = qd.local(np.zeros(3, np.float32))
        own[k[i]] = 1.0
        out[i] = own[0]
    return out


def update(x, k):
    for i in qd.range(4):
        qd.atomic_max(x, k[i], 1.0)
    return x


@pytest.mark.sample(3)
@pytest.mark.parametrize(("dtype", "end"), [(d, e) for d, e in LARGEST if (d[0], e) != ("u", "min")])
def test_the_ends_of_each_dtype_are_told(dtype: str, end: str) -> None:
    index = int(getattr(np.iinfo(dtype), end))
    for function, x in ((gather, X), (scatter, X), (cell, X), (update, X), (between_loops, ROWS), (between_loops, X)):
        with jax.enable_x64("64" in dtype), pytest.raises(qd.BoundsError) as caught:
            qd.block_until_ready(qd.jit(function)(x, np.full(4, index, dtype)))
        if jax.default_backend() == "cpu" or abs(index) < 2**47:
            assert str(caught.value).startswith(f"index {index} is out of bounds for axis 0 of ")


def test_a_remainder_needs_no_limit() -> None:
    def f(p):
        h = qd.zeros(4, np.int32)
        for i in qd.range(p.shape[0]):
            h[p[i] * np.uint32(7) % np.uint32(4)] += 1
        return h

    graph = qd.jit(f).lower(np.zeros(100, np.uint32)).graph()
    assert " min " not in str(graph)
