"""Errors of the maths library against mpmath, and for f32 on many more points against NumPy in f64.

The bound is the library's promise: 4 units in the last place of the exact value, everywhere.
"""


from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from lowering.llvm.maths import library
from qdtrace.ir.types import DType
from tests.maths.cases import CASES, exact, points
from tests.maths.harness import Reference, compiled, ulps

_BOUND = 4.0
_COUNT = 2000
DTYPES = pytest.mark.parametrize("dtype", [DType.f32, DType.f64], ids=str)


def test_every_function_has_a_case():
    assert set(CASES) == library.NAMES


@pytest.mark.sample(full=5)
@DTYPES
@pytest.mark.parametrize("name", CASES)
def test_error_against_mpmath(name: str, dtype: DType):
    arguments, reference = points(name, dtype, _COUNT), exact(name, dtype, _COUNT)
    first = compiled(name, dtype, 8)(*arguments)
    error = ulps(first, reference)
    worst = int(np.argmax(error))
    assert error[worst] <= _BOUND, (error[worst], [a[worst] for a in arguments], first[worst])
    for lanes, vectors in ((1, 1), (4, 2), (16, 1), (8, 4)):
        # The same operations in the same order: the number of lanes cannot show.
        again = compiled(name, dtype, lanes, vectors=vectors)(*arguments)
        np.testing.assert_array_equal(again.view(f"u{dtype.itemsize}"), first.view(f"u{dtype.itemsize}"))


@pytest.mark.full
@pytest.mark.sample(4, full=2)
@pytest.mark.parametrize("name", CASES)
def test_error_without_fused_multiply_add(name: str):
    for dtype in (DType.f32, DType.f64):
        result = compiled(name, dtype, 4, "portable")(*points(name, dtype, _COUNT))
        assert ulps(result, exact(name, dtype, _COUNT)).max() <= _BOUND


_IN_F64: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "cbrt": np.cbrt, "atan2": np.arctan2, "pow": np.power, "rem": np.fmod,
    "logistic": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1.0) / (1 + np.exp(-np.abs(x))),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
_CHUNK = 1 << 20


def _errors_f32(name: str, *patterns: np.ndarray) -> float:
    """The largest error over the f32 numbers of these bits; NumPy's f64 is exact to 1e-8 units of f32."""
    arguments = [p.view(np.float32) for p in patterns]
    got = compiled(name, DType.f32, 16)(*arguments)
    with np.errstate(all="ignore"):
        fraction, exponent = np.frexp(_IN_F64[name](*(a.astype(np.float64) for a in arguments)))
    # frexp leaves infinities, zeros and NaN in the fraction.
    exponent = np.where(np.isfinite(fraction) & (fraction != 0), exponent, 0)
    return float(ulps(got, Reference(fraction, np.zeros_like(fraction), exponent.astype(np.float64))).max())


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", _IN_F64)
def test_f32_error_on_a_million_patterns(name: str):
    rng = np.random.default_rng(2)
    count = 2 if name in ("pow", "atan2", "rem") else 1
    patterns = [rng.integers(0, 1 << 32, _CHUNK, np.uint32) for _ in range(count)]
    if count == 1:
        # One argument: half of the patterns where the function is not constant.
        patterns[0][::2] = rng.uniform(-20, 20, _CHUNK // 2).astype(np.float32).view(np.uint32)
    assert _errors_f32(name, *patterns) <= _BOUND


@pytest.mark.parametrize("target", ["host", "portable"])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sines_stay_within_1(name: str, target: str):
    """Every f32 next to the first maximum or minimum, others around many: 1 is there, nothing is beyond it."""
    apply, rng = compiled(name, DType.f32, 8, target), np.random.default_rng(4)
    at = np.pi / 2 if name == "sin" else np.pi
    low, high = (np.float32(at + d).view(np.uint32) for d in (-2e-3, 2e-3))
    turns = rng.integers(0, 30_000, 20_000) * np.pi + at
    x = np.concatenate([np.arange(low, high, dtype=np.uint32).view(np.float32), turns, turns + rng.normal(0, 1e-3)])
    x = np.concatenate([x, rng.uniform(0, 1e5, 20_000)]).astype(np.float32)
    y = apply(x)
    assert np.abs(y).max() == 1
    np.testing.assert_array_equal(apply(-x), y if name == "cos" else -y)


@DTYPES
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_one_large_angle_among_small_ones(name: str, dtype: DType):
    x = np.linspace(-3, 3, 64, dtype=dtype.numpy)
    x[[5, 21, 63]] = np.finfo(dtype.numpy).max, -1e30, 2.0**40
    reference = Reference.of([getattr(mp, name)(mp.mpf(float(v))) for v in x])
    assert ulps(compiled(name, dtype, 16)(x), reference).max() <= _BOUND


@pytest.mark.parametrize(
    "x",
    # The f64 (Kahan; Muller, Elementary Functions) and the f32 nearest to a multiple of pi/2.
    [6381956970095103.0 * 2.0**797, float(np.float32(16367173.0 * 2.0**72))],
)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_angles_nearest_to_multiples_of_half_pi(name: str, x: float):
    with mp.workprec(2000):
        reference = Reference.of([getattr(mp, name)(mp.mpf(x))])
    assert ulps(compiled(name, DType.f64, 1)(np.array([x])), reference)[0] <= _BOUND
    if x < 1e38:
        assert ulps(compiled(name, DType.f32, 1)(np.array([x], np.float32)), reference)[0] <= _BOUND


@pytest.mark.full
@DTYPES
@pytest.mark.parametrize("name", ["lgamma", "digamma"])
def test_negative_axis(name: str, dtype: DType):
    """There the reflected terms cancel at zeros: the error is measured against the sum of their sizes."""
    rng = np.random.default_rng(3)
    x = -np.concatenate([rng.uniform(0, 4, 500), rng.uniform(0, 40, 500), 2.0 ** rng.uniform(-40, 10, 200)])
    x = x.astype(dtype.numpy)
    x = x[x != np.trunc(x)]
    got = compiled(name, dtype, 8)(x).astype(np.float64)
    values, sizes = [], []
    for v in x:
        v = mp.mpf(float(v))
        if name == "lgamma":
            values.append(mp.log(abs(mp.gamma(v))))
            sizes.append(abs(mp.log(abs(mp.sinpi(v)))) + abs(mp.loggamma(-v)) + abs(mp.log(-v)))
        else:
            values.append(mp.digamma(v))
            sizes.append(abs(mp.digamma(1 - v)) + abs(mp.pi * mp.cot(mp.pi * v)))
    error = np.abs(got - np.array([float(v) for v in values])) / np.array([float(s) for s in sizes])
    # Three functions of 2 units each, and the f64 reference's own half unit.
    assert error.max() <= 7 * np.finfo(dtype.numpy).eps


def test_ulps_counts_units_in_the_last_place():
    one = Reference.of([mp.mpf(1), mp.mpf(1), mp.mpf(2) ** -1074, mp.mpf(10) ** 400, mp.inf, mp.nan, mp.nan])
    eps = np.finfo(np.float64).eps
    got = np.array([1 + 2 * eps, 1 - eps, 2.0**-1073, np.inf, -np.inf, np.nan, 0.0])
    np.testing.assert_array_equal(ulps(got, one), [2, 1, 1, 0, ulps(got, one)[4], 0, np.inf])
    assert ulps(got, one)[4] > 1e15
