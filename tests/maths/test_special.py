"""Zeros and their signs, infinities, NaN, ends of domains, overflow and underflow: C99 annex F."""

import itertools

import numpy as np
import pytest

from qdtrace.ir.types import DType
from tests.maths.harness import compiled

INF, NAN = np.inf, np.nan
DTYPES = pytest.mark.parametrize("dtype", [DType.f32, DType.f64], ids=str)
LANES = pytest.mark.parametrize("lanes", [1, 8])

SPECIAL: dict[str, list[tuple[float, float]]] = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (1e4, INF), (-1e4, 0.0)],
    "exp2": [(0.0, 1.0), (3.0, 8.0), (-3.0, 0.125), (INF, INF), (-INF, 0.0), (1e5, INF), (-1e5, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -1.0), (1e4, INF), (-1e4, -1.0)],
    "log": [(1.0, 0.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN), (-INF, NAN), (-1e-40, NAN)],
    "log2": [(1.0, 0.0), (8.0, 3.0), (0.0, -INF), (-0.0, -INF), (INF, INF), (-1.0, NAN), (-INF, NAN)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -INF), (INF, INF), (-2.0, NAN), (-INF, NAN)],
    "logistic": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (1e4, 1.0), (-1e4, 0.0)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (1e30, 1.0), (-50.0, -1.0)],
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF), (1e4, INF), (-1e4, -INF)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, INF), (1e4, INF), (-1e4, INF)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, np.pi / 2), (-1.0, -np.pi / 2), (1.0001, NAN), (-INF, NAN), (INF, NAN)],
    "acos": [(1.0, 0.0), (-1.0, np.pi), (0.0, np.pi / 2), (-0.0, np.pi / 2), (1.0001, NAN), (-2.0, NAN), (INF, NAN)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (INF, np.pi / 2), (-INF, -np.pi / 2), (1.0, np.pi / 4)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (INF, INF), (-INF, -INF)],
    "acosh": [(1.0, 0.0), (INF, INF), (0.999, NAN), (-1.0, NAN), (-INF, NAN)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.5, NAN), (INF, NAN), (-INF, NAN)],
    "cbrt": [(0.0, 0.0), (-0.0, -0.0), (8.0, 2.0), (-27.0, -3.0), (INF, INF), (-INF, -INF)],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (4.0, 0.5), (INF, 0.0), (-1.0, NAN), (-INF, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (30.0, 1.0), (-30.0, -1.0)],
    "erfc": [(0.0, 1.0), (-0.0, 1.0), (INF, 0.0), (-INF, 2.0), (30.0, 0.0), (-30.0, 2.0)],
    "erf_inv": [(0.0, 0.0), (-0.0, -0.0), (1.0, INF), (-1.0, -INF), (1.1, NAN), (-INF, NAN), (INF, NAN)],
    "lgamma": [(1.0, 0.0), (2.0, 0.0), (0.0, INF), (-0.0, INF), (-1.0, INF), (-7.0, INF), (-1e30, INF), (INF, INF),
               (-INF, INF)],
    "digamma": [(0.0, -INF), (-0.0, -INF), (-1.0, NAN), (-7.0, NAN), (-1e30, NAN), (INF, INF), (-INF, NAN)],
}  # fmt: skip


def _same(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Equal, NaN equal to NaN, and zeros only to zeros of the same sign."""
    return (np.isnan(got) & np.isnan(expected)) | ((got == expected) & (np.signbit(got) == np.signbit(expected)))


@LANES
@DTYPES
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, dtype: DType, lanes: int):
    x = np.array([*(case[0] for case in SPECIAL[name]), NAN], dtype.numpy)
    expected = np.array([*(case[1] for case in SPECIAL[name]), NAN]).astype(dtype.numpy)
    got = compiled(name, dtype, lanes)(x)
    assert _same(got, expected).all(), (x, got, expected)


def _numbers(dtype: DType) -> list[float]:
    info = np.finfo(dtype.numpy)
    small = [0.0, float(info.smallest_subnormal), float(info.smallest_normal), 0.5, 1.0, 1.5, 2.0, 3.0, 4.0]
    large = [2.0**23 + 1, 2.0**24, 2.0**53 - 1, float(info.max), INF]
    return [s * v for v in small + large for s in (1.0, -1.0)] + [NAN]


@LANES
@DTYPES
@pytest.mark.parametrize(
    ("name", "function"), [("pow", np.power), ("atan2", np.arctan2), ("rem", np.fmod)], ids=["pow", "atan2", "rem"]
)
def test_special_pairs(name: str, function: np.ufunc, dtype: DType, lanes: int):
    pairs = np.array(list(itertools.product(_numbers(dtype), repeat=2))).astype(dtype.numpy)
    x, y = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.float64), y.astype(np.float64)).astype(dtype.numpy)
    got = compiled(name, dtype, lanes)(x, y)
    # Ordinary values may differ by rounding (4 units here and 1 in the reference), special ones not at all.
    near = np.isfinite(expected) & (np.abs(expected) > 0)
    with np.errstate(invalid="ignore", over="ignore"):
        close = near & (np.abs(got - expected) <= 5 * np.spacing(np.abs(expected)))
    good = _same(got, expected) | (close if name != "rem" else False)
    assert good.all(), [(x[k], y[k], got[k], expected[k]) for k in np.flatnonzero(~good)[:5]]


@DTYPES
@pytest.mark.parametrize("name", ["sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "expm1", "log1p"])
def test_tiny_arguments_come_back(name: str, dtype: DType):
    info = np.finfo(dtype.numpy)
    x = np.array([info.smallest_subnormal, info.smallest_normal, -info.smallest_subnormal * 3, 1e-30], dtype.numpy)
    np.testing.assert_array_equal(compiled(name, dtype, 4)(x), x)


@DTYPES
def test_cube_roots_of_subnormal_numbers(dtype: DType):
    x = np.array([1, -2, 3, 7, 1000, -(2**20)]).astype(dtype.numpy) * np.finfo(dtype.numpy).smallest_subnormal
    np.testing.assert_array_max_ulp(compiled("cbrt", dtype, 8)(x), np.cbrt(x), 2)


@DTYPES
def test_exact_roots_and_powers(dtype: DType):
    whole = np.arange(1, 65, dtype=dtype.numpy)
    np.testing.assert_array_equal(compiled("cbrt", dtype, 8)(whole**3), whole)
    exponents = np.arange(-64, 64, dtype=dtype.numpy)
    np.testing.assert_array_equal(
        compiled("exp2", dtype, 8)(exponents), np.ldexp(dtype.numpy.type(1), exponents.astype(int))
    )
    np.testing.assert_array_equal(compiled("log2", dtype, 8)(np.exp2(exponents)), exponents)
    np.testing.assert_array_equal(compiled("pow", dtype, 8)(-whole, np.full_like(whole, 2)), whole * whole)
    np.testing.assert_array_equal(compiled("pow", dtype, 8)(-whole, np.full_like(whole, 3)), -(whole**3))
