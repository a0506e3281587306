"""sin, cos and tan of angles whose reduction takes many bits of pi: every exponent, numbers nearest to zeros."""

import functools
import math

import mpmath as mp
import numpy as np
import pytest

from lowering.llvm.maths.coefficients import TWO_OVER_PI, TWO_OVER_PI_BITS
from lowering.llvm.maths.trigonometric import LIMITS
from lowering.llvm.options import EmitOptions
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Program, Var
from qdtrace.ir.types import DType
from tests.lowering.kernels import execute_kernels
from tests.maths.harness import Reference, compiled, ulps
from tests.runtime.programs import range_for

NAMES = pytest.mark.parametrize("name", ["sin", "cos", "tan"])
DTYPES = pytest.mark.parametrize("dtype", [DType.f32, DType.f64], ids=str)
BOUND = 4.0
WORST = {DType.f32: 16367173.0 * 2.0**72, DType.f64: 6381956970095103.0 * 2.0**797}
"""The numbers nearest to a multiple of pi/2 (J.-M. Muller, Elementary Functions, 3rd edition, 2016)."""


def nearest_significands(exponent: int, bits: int) -> set[int]:
    """Of `bits` bits, those with which m * 2**exponent comes close to multiples of pi/2.

    Close to a whole number is m * a, with a the fraction of 2**exponent * 2/pi, where m is the denominator of a
    convergent of its continued fraction, or a small multiple of one.
    """
    whole = 1 << TWO_OVER_PI_BITS
    numerator, denominator = (TWO_OVER_PI << max(exponent, 0)) % whole, whole << max(-exponent, 0)
    before, last, found = 0, 1, set[int]()
    while numerator:
        term, rest = divmod(denominator, numerator)
        before, last = last, term * last + before
        denominator, numerator = numerator, rest
        if last >> bits:
            break
        found.add(last * -(-(1 << (bits - 1)) // last))
    return {m for m in found if m < 1 << bits}


@functools.cache
def angles(dtype: DType) -> np.ndarray:
    """For every exponent beyond the limit: random significands, the smallest and largest, those nearest to zeros."""
    info, rng = np.finfo(dtype.numpy), np.random.default_rng(5)
    bits = info.nmant + 1
    found: list[float] = []
    for exponent in range(math.frexp(LIMITS[{DType.f32: "float", DType.f64: "double"}[dtype]])[1] - 1, info.maxexp):
        near = sorted(nearest_significands(exponent - info.nmant, bits))[-2 if dtype is DType.f64 else -20 :]
        random = rng.integers(1 << (bits - 1), 1 << bits, 2).tolist()
        found += [math.ldexp(m, exponent - info.nmant) for m in {*near, *random, 1 << (bits - 1), (1 << bits) - 1}]
    found += [WORST[dtype], float(np.nextafter(dtype.numpy.type(1e5), dtype.numpy.type(np.inf))), 2.0**28]
    x = np.array(found, dtype.numpy)
    return np.where(rng.random(x.size) < 0.5, -x, x)


@functools.cache
def exact(name: str, dtype: DType) -> Reference:
    """The values at `angles`."""
    with mp.workprec(1400):
        return Reference.of([getattr(mp, name)(mp.mpf(float(x))) for x in angles(dtype)])


@pytest.mark.full
def test_the_nearest_are_found():
    """The hardest numbers known are among those that are drawn."""
    for dtype, bits in ((DType.f32, 24), (DType.f64, 53)):
        fraction, exponent = math.frexp(WORST[dtype])
        assert int(math.ldexp(fraction, bits)) in nearest_significands(exponent - bits, bits)
        near = np.abs(np.array([float(v) for v in exact("cos", dtype).exponent]))
        assert near.max() >= {DType.f32: 28, DType.f64: 58}[dtype]


@pytest.mark.full
@NAMES
@DTYPES
@pytest.mark.parametrize("target", ["host", "portable"])
def test_error_of_vectors(name: str, dtype: DType, target: str):
    x = angles(dtype)
    got = compiled(name, dtype, 8, target)(x)
    error = ulps(got, exact(name, dtype))
    assert error.max() <= BOUND, (error.max(), x[np.argmax(error)])
    for lanes, vectors in ((1, 1), (3, 1), (4, 2), (8, 4)):
        again = compiled(name, dtype, lanes, target, vectors)(x)
        np.testing.assert_array_equal(again, got)


@NAMES
@DTYPES
@pytest.mark.parametrize("huge", range(4))
def test_nan_hides_no_huge_angle(name: str, dtype: DType, huge: int):
    """Vectors side by side are tested by their largest lanes, of which the same lane of others may be NaN."""
    x = np.full(16, np.nan, dtype.numpy)
    x[4 * huge + 1] = -1e30
    apart, together = (compiled(name, dtype, 4, vectors=vectors)(x) for vectors in (1, 4))
    assert np.isfinite(apart).sum() == 1
    np.testing.assert_array_equal(together, apart)


@NAMES
@DTYPES
@pytest.mark.parametrize("vectors", [1, 4])
def test_small_angles_beside_huge_ones_stay(name: str, dtype: DType, vectors: int):
    """A lane keeps its bits whatever its neighbours are."""
    small = np.concatenate([np.linspace(-9, 9, 61), [0.0, -0.0, 1e-40, 5e-324]]).astype(dtype.numpy)
    apply = compiled(name, dtype, 16 // vectors, vectors=vectors)
    mixed = np.stack([small, np.resize(angles(dtype), small.size)], axis=1).ravel()
    np.testing.assert_array_equal(apply(mixed)[::2].view(f"u{dtype.itemsize}"), apply(small).view(f"u{dtype.itemsize}"))
    with_infinities = np.stack([small, np.resize([np.inf, -np.inf, np.nan], small.size)], axis=1).ravel()
    got = apply(with_infinities.astype(dtype.numpy))
    np.testing.assert_array_equal(got[::2].view(f"u{dtype.itemsize}"), apply(small).view(f"u{dtype.itemsize}"))
    assert np.isnan(got[1::2]).all()


@pytest.mark.full
@NAMES
@DTYPES
@pytest.mark.parametrize("fast_math", [True, False])
def test_error_of_kernels(name: str, dtype: DType, fast_math: bool):
    """What GPUs run: the slow path is a part of the kernel."""
    x = np.concatenate([angles(dtype), [np.inf, -np.inf, np.nan, 1.0]]).astype(dtype.numpy)
    ref = ref_var(dtype, x.shape, "x")

    def body(b: Builder, i: Var) -> None:
        b.store(ref, b(name, b.load(ref, i)), i)

    program = Program("huge", (ref,), (), (range_for(body, x.size),), (ref,))
    (got,) = execute_kernels(program, [x], EmitOptions(fast_math))
    assert ulps(got[:-4], exact(name, dtype)).max() <= BOUND
    assert np.isnan(got[-4:-1]).all()
    # kernels of f32 reduce by quarter turns, code of a CPU by half turns
    np.testing.assert_array_max_ulp(got[-1:], compiled(name, dtype, 1)(x[-1:]), maxulp=1)
