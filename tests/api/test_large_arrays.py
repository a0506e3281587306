"""Arrays of 2**31 elements and more: indices that 32 bits do not hold. Nothing is run, but for the slow test."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd

N = 2**33
X = jax.ShapeDtypeStruct((N,), jnp.int8)


def gather(x, k):
    out = qd.empty(k.shape, x.dtype)
    for i in qd.range(k.shape[0]):
        out[i] = x[k[i]]
    return out


def scatter(x, k):
    for i in qd.range(k.shape[0]):
        x[k[i]] = i.astype(jnp.int8)
    return x


def ends(x):
    out = qd.empty(5, x.dtype)
    for _ in qd.range(1):
        out[:2] = x[3_000_000_000:3_000_000_002]
        out[2:4] = x[:: 2**32]
        out[4] = x[7]
    return out


def constants(x):
    out = qd.empty(2, x.dtype)
    for i in qd.range(2):
        out[i] = x[3_000_000_000] + x[-1]
    return out


def graph(f, *args, bounds: str = "raise") -> str:
    low = qd.jit(f, options={"bounds": bounds}).lower(*args, target="sm_90")
    low.as_text("llvm")
    return low.graph()


def indices(dtype: str) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((5,), dtype)


@pytest.mark.parametrize("bounds", ["raise", "clip", "unchecked"])
@pytest.mark.parametrize("f", [gather, scatter])
def test_unsigned_indices_keep_their_value(f, bounds: str) -> None:
    """All of u32 are in range: nothing is checked, and nothing limited to what i32 holds."""
    text = graph(f, X, indices("uint32"), bounds=bounds)
    assert "convert[dtype=i64]" in text
    assert "bound[" not in text
    assert "min" not in text
    assert "2147483647" not in text
    with jax.enable_x64(True):
        text = graph(f, X, indices("uint64"), bounds=bounds)
    assert "2147483647:" not in text


@pytest.mark.parametrize("f", [gather, scatter])
def test_nearest_elements(f) -> None:
    """Of i32 no number is too large; a limit that wraps around would be the element before the first."""
    text = graph(f, X, indices("int32"), bounds="clip")
    assert "min" not in text
    assert "-1:i32" not in text
    assert ("max" if f is gather else "ge") in text
    with jax.enable_x64(True):
        assert f"{N - 1}:i64" in graph(f, X, indices("int64"), bounds="clip")
    for size, last in ((2**31 - 1, 2**31 - 2), (2**31, 2**31 - 1)):
        text = graph(f, jax.ShapeDtypeStruct((size,), jnp.int8), indices("int32"), bounds="clip")
        assert (f"{last}:i32" in text) == (size < 2**31)


def test_slices() -> None:
    text = graph(ends, X)
    for k in (3_000_000_000, 3_000_000_001, 2**32):
        assert f"load x {k}:i64" in text
    assert "load x 7:i32" in text
    assert "x -" not in text


def test_constants() -> None:
    with jax.enable_x64(True):
        text = graph(constants, X)
    assert "load x 3000000000:i64" in text
    assert f"load x {N - 1}:i64" in text
    with pytest.raises(qd.TraceValueError) as raised:
        graph(constants, X)
    rule, place, _, advice = str(raised.value).splitlines()
    assert rule == "index 3000000000 does not fit into int32"
    assert place.endswith(" in constants")
    assert advice == "help: turn on 64-bit integers: jax.config.update('jax_enable_x64', True)"


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("shape", [(1 << 16, 1 << 16), (3, 1 << 31), (1 << 31, 3)])
def test_ranges_of_two_axes(shape: tuple[int, int], target: str) -> None:
    @qd.jit
    def more(x):
        out = qd.empty_like(x)
        for i, j in qd.ndrange(*x.shape):
            out[i, j] = x[i, j] + x[i, 0]
        return out

    with jax.enable_x64(True):
        low = more.lower(jax.ShapeDtypeStruct(shape, jnp.int8), target=target)
        assert "i64" in low.as_text("llvm")


@pytest.mark.slow
def test_elements_behind_those_of_32_bits() -> None:
    n = 2**31 + 100
    x = np.zeros(n, np.int8)
    x[[2**31 - 1, 2**31, n - 1, 5]] = 1, 2, 3, 4
    k = np.array([2**31 - 1, 2**31, n - 1, 5], np.uint32)
    assert qd.jit(gather)(x, k).tolist() == [1, 2, 3, 4]
    with pytest.raises(qd.BoundsError, match="index 2147483748 is"):
        jax.block_until_ready(qd.jit(gather)(x, k + np.uint32([0, 0, 1, 0])))
    got = qd.jit(gather, options={"bounds": "clip"})(x, k + np.uint32([0, 0, 9, 0]))
    assert got.tolist() == [1, 2, 3, 4]
    got = qd.jit(gather, options={"bounds": "clip"})(x, np.int32([2**31 - 1, -1, -(2**31), 5]))
    assert got.tolist() == [1, 0, 0, 4]
