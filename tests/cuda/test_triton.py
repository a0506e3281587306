"""Kernels of Triton on a GPU: streams, sums, histograms, prefix sums and checks, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import qdtrace as qd
from tests.cuda.programs import shifted

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
@pytest.mark.parametrize("n", [*SIZES, 8192, 8193, 32 * 1024 + 1, 1 << 24])
def test_prefix_sums(n: int) -> None:
    for _ in range(2):
        assert np.array_equal(beginnings(small(n)), np.cumsum(small(n), dtype=np.float64))


OPERATIONS = {
    "add": (lambda a, b: a + b, np.add), "mul": (lambda a, b: a * b, np.multiply), "max": (jnp.maximum, np.maximum),
    "min": (jnp.minimum, np.minimum), "xor": (jnp.bitwise_xor, np.bitwise_xor),
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["add i4", "mul u4", "add i8", "xor u8", "max i8", "add f8", "min f4", "max f8"])
def test_scans_by_other_operations(op: str) -> None:
    """Of all bits of integers, which wrap; infinity and NaN reach all that follows. From the end, and of the values
    before each element."""
    (name, dtype), n, rng = op.split(), 1_000_003, np.random.default_rng(5)
    combine, ufunc = OPERATIONS[name]
    d = np.dtype(dtype)
    if d.kind == "f":
        x = rng.integers(-100, 100, n).astype(d)
        x[100_000] = np.inf if name == "add" else np.nan
    else:
        x = rng.integers(np.iinfo(d).min, np.iinfo(d).max, n, dtype=d, endpoint=True) | d.type(1)

    @qd.jit
    def scan(x):
        before, behind, total = qd.empty_like(x), qd.empty_like(x), qd.full((), x[n - 1], x.dtype)
        for i in qd.range(1, n, serial=True):
            before[n - 1 - i] = total[...]
            total[...] = combine(total[...], x[n - 1 - i])
            behind[n - 1 - i] = total[...]
        before[n - 1] = behind[n - 1] = x[n - 1]
        return before, behind

    want = ufunc.accumulate(x[::-1], dtype=d)[::-1]
    with jax.enable_x64(True):
        assert any("scan by" in task.reason for task in scan.lower(x, target="sm_90").tasks)
        for _ in range(2):
            before, behind = scan(x)
            assert np.array_equal(behind, want, equal_nan=d.kind == "f")
            assert np.array_equal(before[:-1], want[1:], equal_nan=d.kind == "f")


@pytest.mark.gpu
def test_a_scan_of_a_length_that_only_the_device_knows() -> None:
    n = 1 << 26

    @qd.jit(options={"bounds": "unchecked"})
    def scan(x, count):
        out, total = qd.zeros_like(x), qd.zeros((), x.dtype)
        for i in qd.range(count, serial=True):
            total[...] += x[i]
            out[i] = total[...]
        return out, total

    x = jnp.asarray(np.random.default_rng(7).integers(-9, 9, n).astype(np.int32))
    assert "known on the device" in scan.lower(x, 1, target="sm_90").tasks[0].reason
    want = jnp.cumsum(x)
    for count in (0, 1, 4096, 4097, 1_000_003, n - 1):
        out, total = scan(x, count)
        assert bool((out[:count] == want[:count]).all())
        assert not bool(out[count:].any())
        assert int(total) == (int(want[count - 1]) if count else 0)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [100_003, 1 << 24])
def test_the_same_numbers_have_the_same_prefixes(n: int) -> None:
    """Whatever tile comes first: sums of floats that depend on the order have the same bits in each call."""
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    first = beginnings(x)
    np.testing.assert_allclose(first, np.cumsum(x, dtype=np.float64), rtol=1e-4, atol=2e-7 * float(np.abs(x).sum()))
    bits = first.view(jnp.int32)
    assert all(bool((beginnings(x).view(jnp.int32) == bits).all()) for _ in range(20))


@pytest.mark.gpu
def test_the_derivative_of_a_scan_is_one() -> None:
    x, w = small(1_000_003), small(1_000_003)[::-1].copy()

    def loss(x):
        return (beginnings(x) * w).sum()

    low = qd.jit(jax.grad(loss)).lower(x, target="sm_90")
    assert ["scan by add" in task.reason for task in low.tasks if task.name.endswith("reverse")] == [True]
    assert np.array_equal(jax.grad(loss)(x), np.cumsum(w[::-1], dtype=np.float64)[::-1])


@pytest.mark.gpu
def test_scans_one_after_the_other_in_a_loop_of_xla() -> None:
    """Each launch finds its words cleared, also where XLA runs a recorded graph."""
    n = 300_007
    x = np.random.default_rng(3).integers(-9, 9, n).astype(np.int32)
    out = jax.jit(lambda x: jax.lax.fori_loop(0, 10, lambda _, x: beginnings(beginnings(x) % 100) % 100, x))(x)
    want = x
    for _ in range(20):
        want = np.cumsum(want, dtype=np.int32) % 100
    assert np.array_equal(out, want)


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
