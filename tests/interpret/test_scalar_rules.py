"""Scalar primitives against NumPy, Python integers, `math` and mpmath."""

import math
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdtrace.interpret import special
from qdtrace.interpret.numpy_rules import RULES, apply_scalar, wrapper
from qdtrace.interpret.reference import COMPILE
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.types import DType

INTEGERS = [d for d in DType if d.is_integer]
SIGNED = [d for d in INTEGERS if d.is_signed]
FLOATS = [d for d in DType if d.is_float]
NAN, INF = math.nan, math.inf


def of(dtype: DType, *values):
    """The values as scalars of the dtype."""
    return [np.array(v).astype(dtype.numpy)[()] for v in values]


def run(name: str, source: DType, /, *values, **params):
    out = apply_scalar(name, of(source, *values), params)
    assert isinstance(out, np.generic)
    return out


def same(got, want) -> bool:
    """Equal dtype and value, NaN equal to NaN, zeros by sign."""
    want = np.asarray(want)[()]
    if got.dtype != want.dtype:
        return False
    return bool(got != got and want != want) or got.tobytes() == want.tobytes()


def test_a_rule_for_each_primitive():
    assert COMPILE.keys() == PRIMITIVES.keys()
    others = {"load", "store", "accum", "atomic", "cell", "for", "while", "if", "bound", "check", "platform", "tell"}
    assert RULES.keys() == PRIMITIVES.keys() - others


# Integers.


def edges(dtype: DType) -> list[int]:
    info = np.iinfo(dtype.numpy)
    return sorted({int(info.min), int(info.min) + 1, -1 if dtype.is_signed else 0, 0, 1, 2, 7, int(info.max)})


def truncated(a: int, b: int) -> int:
    return int(Fraction(a, b))  # Fraction to int truncates towards zero


EXACT = {
    "add": lambda a, b, bits: a + b,
    "sub": lambda a, b, bits: a - b,
    "mul": lambda a, b, bits: a * b,
    "div": lambda a, b, bits: truncated(a, b) if b else -1,
    "rem": lambda a, b, bits: a - b * truncated(a, b) if b else a,
    "min": lambda a, b, bits: min(a, b),
    "max": lambda a, b, bits: max(a, b),
    "and": lambda a, b, bits: a & b,
    "or": lambda a, b, bits: a | b,
    "xor": lambda a, b, bits: a ^ b,
    "shift_left": lambda a, n, bits: a << n if 0 <= n < bits else 0,
    "shift_right_logical": lambda a, n, bits: (a & ((1 << bits) - 1)) >> n if 0 <= n < bits else 0,
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_binary_integers_are_exact_modulo_the_width(name, dtype):
    wrap = wrapper(dtype)
    for a in edges(dtype):
        for b in edges(dtype):
            assert same(run(name, dtype, a, b), wrap(EXACT[name](a, b, dtype.bits))), (a, b)


@given(st.sampled_from(INTEGERS), st.sampled_from(sorted(EXACT)), st.integers(), st.integers())
def test_binary_integers_at_random(dtype, name, a, b):
    wrap = wrapper(dtype)
    x, y = wrap(a), wrap(b)
    assert same(apply_scalar(name, [x, y], {}), wrap(EXACT[name](int(x), int(y), dtype.bits)))


def test_wrapper_is_modular():
    assert [int(wrapper(DType.i8)(i)) for i in (127, 128, -129, 256)] == [127, -128, 127, 0]
    assert [int(wrapper(DType.u8)(i)) for i in (-1, 256, 257)] == [255, 0, 1]
    assert wrapper(DType.bool)(2) == np.False_


@pytest.mark.parametrize("dtype", SIGNED)
def test_the_smallest_integer(dtype):
    low = int(np.iinfo(dtype.numpy).min)
    assert run("div", dtype, low, -1) == low
    assert run("rem", dtype, low, -1) == 0
    assert run("neg", dtype, low) == low
    assert run("abs", dtype, low) == low
    assert run("sign", dtype, low) == -1


def test_division_truncates_towards_zero():
    pairs = [(7, 2), (-7, 2), (7, -2), (-7, -2)]
    assert [int(run("div", DType.i32, *p)) for p in pairs] == [3, -3, -3, 3]
    assert [int(run("rem", DType.i32, *p)) for p in pairs] == [1, -1, 1, -1]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_division_by_zero(dtype):
    all_ones = wrapper(dtype)(-1)
    for a in edges(dtype):
        assert run("div", dtype, a, 0) == all_ones
        assert run("rem", dtype, a, 0) == wrapper(dtype)(a)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_arithmetic_shift_keeps_the_top_bit(dtype):
    top = wrapper(dtype)(1 << (dtype.bits - 1))
    all_ones = wrapper(dtype)(-1)
    for n in (dtype.bits - 1, dtype.bits, np.iinfo(dtype.numpy).max):
        assert apply_scalar("shift_right_arithmetic", [top, wrapper(dtype)(int(n))], {}) == all_ones
    assert run("shift_right_arithmetic", dtype, 6, 1) == 3
    if dtype.is_signed:
        assert run("shift_right_arithmetic", dtype, -7, 1) == -4
        assert run("shift_right_arithmetic", dtype, -7, -1) == -1  # the amount is read as unsigned


@pytest.mark.parametrize("dtype", INTEGERS)
def test_bit_counts(dtype):
    assert run("clz", dtype, 0) == dtype.bits
    assert run("clz", dtype, 1) == dtype.bits - 1
    assert apply_scalar("clz", [wrapper(dtype)(-1)], {}) == 0
    assert apply_scalar("population_count", [wrapper(dtype)(-1)], {}) == dtype.bits
    assert run("population_count", dtype, 6) == 2


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 7])
def test_integer_pow_of_integers_wraps(dtype, exponent):
    for a in edges(dtype):
        assert same(run("integer_pow", dtype, a, y=exponent), wrapper(dtype)(a**exponent))


def test_negative_powers():
    assert [int(run("integer_pow", DType.i32, a, y=-3)) for a in (1, -1, 2, 0)] == [1, -1, 0, -1]
    assert run("integer_pow", DType.f64, 2.0, y=-3) == 0.125
    assert run("integer_pow", DType.f32, 0.0, y=-1) == INF
    assert same(run("integer_pow", DType.f32, NAN, y=0), np.float32(1))


def test_bool_operations():
    t, f = np.True_, np.False_
    for name, want in {"and": [f, f, f, t], "or": [f, t, t, t], "xor": [f, t, t, f]}.items():
        assert [apply_scalar(name, [a, b], {}) for a in (f, t) for b in (f, t)] == want
    assert apply_scalar("not", [t], {}) is not t
    assert apply_scalar("not", [f], {}) == t
    assert apply_scalar("lt", [f, t], {}) == t
    assert apply_scalar("ge", [f, t], {}) == f
    assert apply_scalar("eq", [t, t], {}) == t
    for dtype in INTEGERS:
        assert apply_scalar("not", of(dtype, 0), {}) == wrapper(dtype)(-1)


# Floats.


@pytest.mark.parametrize("dtype", FLOATS)
def test_comparisons_with_nan(dtype):
    for name in ("lt", "le", "gt", "ge", "eq"):
        assert not run(name, dtype, NAN, 1.0)
        assert not run(name, dtype, 1.0, NAN)
    assert run("ne", dtype, NAN, NAN)
    assert run("eq", dtype, 0.0, -0.0)


@pytest.mark.parametrize("dtype", FLOATS)
def test_min_max_and_sign(dtype):
    zero, minus = of(dtype, 0.0, -0.0)
    for name in ("min", "max"):
        assert np.isnan(run(name, dtype, NAN, 1.0))
        assert np.isnan(run(name, dtype, 1.0, NAN))
        assert run(name, dtype, INF, -INF) == (-INF if name == "min" else INF)
    for a, b in [(zero, minus), (minus, zero)]:
        assert same(apply_scalar("min", [a, b], {}), minus)
        assert same(apply_scalar("max", [a, b], {}), zero)
    assert same(run("sign", dtype, -0.0), minus)
    assert same(run("sign", dtype, 0.0), zero)
    assert np.isnan(run("sign", dtype, NAN))
    assert [float(run("sign", dtype, v)) for v in (-INF, -2, 3)] == [-1, -1, 1]
    assert same(run("abs", dtype, -0.0), zero)
    assert same(run("neg", dtype, 0.0), minus)


@pytest.mark.parametrize("dtype", FLOATS)
def test_rounding(dtype):
    table = {
        "floor": [-2, -3, -1, 0, 0, 0, 2, 2],
        "ceil": [-1, -2, -0.0, 0, 1, 1, 3, 3],
        "trunc": [-1, -2, -0.0, 0, 0, 0, 2, 2],
        "round_even": [-2, -2, -0.0, 0, 0, 1, 2, 3],
        "round_away": [-2, -3, -1, 0, 1, 1, 3, 3],
    }
    for name, wants in table.items():
        for value, want in zip([-1.5, -2.5, -0.5, 0.0, 0.5, 0.75, 2.5, 2.75], wants, strict=True):
            assert same(run(name, dtype, value), of(dtype, float(want))[0]), (name, value)
        assert same(run(name, dtype, INF), of(dtype, INF)[0])
        assert np.isnan(run(name, dtype, NAN))
        assert np.signbit(run(name, dtype, -0.0))


def test_round_away_just_below_a_half():
    assert run("round_away", DType.f64, 0.49999999999999994) == 0.0
    assert run("round_away", DType.f32, 8388609.0) == 8388609.0  # 2**23 + 1 has no fraction


@pytest.mark.parametrize("dtype", FLOATS)
def test_float_remainder_is_fmod(dtype):
    assert [float(run("rem", dtype, a, b)) for a, b in [(5.5, 2), (-5.5, 2), (5.5, -2)]] == [1.5, -1.5, 1.5]
    assert np.isnan(run("rem", dtype, 1.0, 0.0))
    assert np.isnan(run("rem", dtype, INF, 2.0))
    assert run("rem", dtype, 2.0, INF) == 2.0
    assert np.signbit(run("rem", dtype, -4.0, 2.0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_is_finite_and_division(dtype):
    assert [bool(run("is_finite", dtype, v)) for v in (0, 1, INF, -INF, NAN)] == [True, True, False, False, False]
    assert run("div", dtype, 1.0, 0.0) == INF
    assert run("div", dtype, 1.0, -0.0) == -INF
    assert np.isnan(run("div", dtype, 0.0, 0.0))
    assert run("rsqrt", dtype, -0.0) == -INF
    assert run("rsqrt", dtype, 4.0) == 0.5
    assert np.isnan(run("sqrt", dtype, -1.0))


@pytest.mark.parametrize("dtype", FLOATS)
def test_nextafter_is_of_the_type_itself(dtype):
    one, two = of(dtype, 1.0, 2.0)
    after = apply_scalar("nextafter", [one, two], {})
    integer = np.dtype(f"u{dtype.itemsize}")
    assert int(after.view(integer)) == int(one.view(integer)) + 1
    assert same(apply_scalar("nextafter", [one, one], {}), one)
    assert np.isnan(apply_scalar("nextafter", of(dtype, NAN, 1.0), {}))


HALVES = [(DType.f16, np.float16), (DType.bf16, ml_dtypes.bfloat16)]


@pytest.mark.parametrize(("dtype", "make"), HALVES)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "sqrt", "exp", "sin", "pow"])
def test_halves_are_singles_rounded(dtype, make, name):
    rng = np.random.default_rng(1)
    arity = 1 if name in ("sqrt", "exp", "sin") else 2
    for _ in range(200):
        operands = rng.normal(size=arity).astype(np.float32).astype(make)
        single = apply_scalar(name, [np.float32(v) for v in operands], {})
        assert same(apply_scalar(name, list(operands), {}), make(single))


# Functions against mpmath with 40 digits.

UNARY = {
    "sqrt": (mpmath.sqrt, 0, 50), "cbrt": (mpmath.cbrt, 0, 50), "rsqrt": (lambda x: 1 / mpmath.sqrt(x), 1e-3, 50),
    "exp": (mpmath.exp, -30, 30), "exp2": (lambda x: mpmath.mpf(2) ** x, -30, 30), "expm1": (mpmath.expm1, -3, 3),
    "log": (mpmath.log, 1e-3, 50), "log2": (lambda x: mpmath.log(x, 2), 1e-3, 50), "log1p": (mpmath.log1p, -0.9, 3),
    "logistic": (lambda x: 1 / (1 + mpmath.exp(-x)), -30, 30), "tanh": (mpmath.tanh, -3, 3),
    "sin": (mpmath.sin, -50, 50), "cos": (mpmath.cos, -50, 50), "tan": (mpmath.tan, -50, 50),
    "asin": (mpmath.asin, -1, 1), "acos": (mpmath.acos, -1, 1), "atan": (mpmath.atan, -9, 9),
    "sinh": (mpmath.sinh, -5, 5), "cosh": (mpmath.cosh, -5, 5), "asinh": (mpmath.asinh, -9, 9),
    "acosh": (mpmath.acosh, 1, 9), "atanh": (mpmath.atanh, -1, 1), "erf": (mpmath.erf, -4, 4),
    "erfc": (mpmath.erfc, -4, 9), "erf_inv": (mpmath.erfinv, -1, 1), "digamma": (mpmath.digamma, 1e-3, 40),
    "lgamma": (lambda x: mpmath.log(abs(mpmath.gamma(x))), 1e-3, 40),
}  # fmt: skip


def ulps(got: float, want: mpmath.mpf, dtype: DType) -> float:
    unit = np.spacing(np.abs(np.array(float(want)).astype(dtype.numpy)))
    return float(abs(mpmath.mpf(float(got)) - want) / mpmath.mpf(float(unit)))


@pytest.mark.parametrize("name", sorted(UNARY))
def test_functions(name):
    exact, low, high = UNARY[name]
    rng = np.random.default_rng(2)
    with mpmath.workdps(40):
        for x in rng.uniform(low, high, 60):
            # A double: the platform's library and our series stay within a few ulp.
            # A single is computed in double, so rounding is the only error: half an ulp, and 1e-6 for ties.
            assert ulps(run(name, DType.f64, x), exact(mpmath.mpf(x)), DType.f64) <= 4
            single = float(np.float32(x))
            if not low <= single <= high:
                continue
            assert ulps(run(name, DType.f32, single), exact(mpmath.mpf(single)), DType.f32) <= 0.5 + 1e-6


@pytest.mark.parametrize("name", ["pow", "atan2"])
def test_binary_functions(name):
    rng = np.random.default_rng(3)
    with mpmath.workdps(40):
        for _ in range(60):
            a, b = rng.uniform(0.1, 5), rng.uniform(-5, 5)
            exact = mpmath.mpf(a) ** b if name == "pow" else mpmath.atan2(a, b)
            assert ulps(run(name, DType.f64, a, b), exact, DType.f64) <= 2  # the platform's library, correct to 1 ulp


def test_special_values_of_functions():
    table = [
        ("erf_inv", 1.0, INF), ("erf_inv", -1.0, -INF), ("erf_inv", 2.0, NAN), ("erf_inv", 0.0, 0.0),
        ("erf_inv", NAN, NAN), ("lgamma", 0.0, INF), ("lgamma", -3.0, INF), ("lgamma", INF, INF),
        ("lgamma", -INF, INF), ("lgamma", 1.0, 0.0), ("lgamma", 2.0, 0.0), ("lgamma", NAN, NAN), ("lgamma", 1e308, INF),
        ("digamma", 0.0, -INF), ("digamma", -2.0, NAN), ("digamma", INF, INF), ("digamma", -INF, NAN),
        ("erf", INF, 1.0), ("erfc", INF, 0.0), ("erfc", -INF, 2.0), ("logistic", -INF, 0.0), ("logistic", INF, 1.0),
        ("logistic", NAN, NAN), ("log", 0.0, -INF), ("log", -1.0, NAN), ("log1p", -1.0, -INF), ("exp", INF, INF),
        ("exp", -INF, 0.0), ("sin", INF, NAN), ("acosh", 0.5, NAN), ("atanh", 1.0, INF), ("tanh", INF, 1.0),
        ("cbrt", -8.0, -2.0), ("exp2", 3.0, 8.0),
    ]  # fmt: skip
    for name, x, want in table:
        for dtype in (DType.f32, DType.f64):
            if dtype is DType.f32 and x == 1e308:
                continue
            assert same(run(name, dtype, x), of(dtype, want)[0]), (name, x)


def test_special_values_of_pow_and_atan2():
    for a, b, want in [(1.0, NAN, 1.0), (NAN, 0.0, 1.0), (-8.0, 1 / 3, NAN), (0.0, -1.0, INF), (-0.0, -3.0, -INF)]:
        assert same(run("pow", DType.f64, a, b), np.float64(want))
    assert same(run("atan2", DType.f64, -0.0, -1.0), np.float64(-math.pi))
    assert same(run("atan2", DType.f64, 0.0, 0.0), np.float64(0.0))


def test_lgamma_near_its_zeros_and_on_the_negative_side():
    with mpmath.workdps(40):
        for x in (1 + 1e-9, 1 - 1e-9, 2 + 1e-9, 2 - 1e-9, 0.51, 1.49, 1.51, 2.49):
            assert ulps(special.lgamma(x), mpmath.log(mpmath.gamma(x)), DType.f64) <= 4  # two roundings and a series
        for x in (-0.5, -1.5, -7.25):
            want = mpmath.log(abs(mpmath.gamma(x)))
            assert abs(special.lgamma(x) - want) < 1e-14  # absolute: it has zeros there
            assert abs(special.digamma(x) - mpmath.digamma(x)) < 1e-14 * max(1, abs(mpmath.digamma(x)))


def test_erf_inv_is_the_inverse_to_the_ends():
    with mpmath.workdps(40):
        for k in range(1, 53):
            x = 1 - 2.0**-k
            assert ulps(special.erf_inv(x), mpmath.erfinv(mpmath.mpf(x)), DType.f64) <= 4  # erfc has 1 ulp of its own
            assert special.erf_inv(-x) == -special.erf_inv(x)


@given(st.tuples(*3 * [st.floats(width=32, allow_nan=False, allow_infinity=False)]))
def test_fma_of_singles_rounds_once(operands):
    a, b, c = operands
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    got = apply_scalar("fma", [np.float32(v) for v in operands], {})
    assert got.dtype == np.float32
    if np.isfinite(got):
        down, up = (
            (abs(Fraction(float(np.nextafter(got, np.float32(d)))) - exact) for d in (-INF, INF))
            if abs(got) < np.float32(3e38)
            else (abs(exact) + 1, abs(exact) + 1)
        )
        assert abs(Fraction(float(got)) - exact) <= min(down, up)


@given(st.tuples(*3 * [st.floats(-1e150, 1e150)]))
def test_fma_of_doubles_rounds_once(operands):
    a, b, c = operands
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    got = special.fma(a, b, c)
    neighbours = [math.nextafter(got, INF), math.nextafter(got, -INF)]
    assert all(abs(Fraction(got) - exact) <= abs(Fraction(n) - exact) for n in neighbours if math.isfinite(n))


def test_fma_edges():
    assert same(run("fma", DType.f64, 0.0, -1.0, 0.0), np.float64(0.0))
    assert same(run("fma", DType.f64, 0.0, -1.0, -0.0), np.float64(-0.0))
    assert np.isnan(run("fma", DType.f64, INF, 0.0, 1.0))
    assert run("fma", DType.f64, 1e308, 1e10, 0.0) == INF
    assert run("fma", DType.f64, -1e308, 1e10, 0.0) == -INF
    assert run("fma", DType.f32, 1e38, 10.0, -INF) == -INF
    tiny = 2.0**-24
    assert run("fma", DType.f32, 1 + tiny * 2, 1 + tiny * 2, -(1 + tiny * 4)) == tiny**2 * 4  # lost when rounded twice


# Conversions.


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", FLOATS)
def test_float_to_integer_truncates_and_saturates(source, target):
    info = np.iinfo(target.numpy)
    for value, want in [(NAN, 0), (INF, info.max), (-INF, info.min), (2.75, 2), (-0.75, 0), (-0.0, 0)]:
        assert same(run("convert", source, value, dtype=target), target.numpy.type(want))
    minus = run("convert", source, -2.75, dtype=target)
    assert minus == (-2 if target.is_signed else 0)
    huge = of(source, 3e38 if source is not DType.f16 else 6e4)[0]
    assert apply_scalar("convert", [huge], {"dtype": target}) == min(int(float(huge)), int(info.max))


@pytest.mark.parametrize("target", INTEGERS)
@pytest.mark.parametrize("source", INTEGERS)
def test_integer_to_integer_wraps(source, target):
    for value in edges(source):
        assert same(run("convert", source, value, dtype=target), wrapper(target)(value))


def test_integers_to_single_round_once():
    value = (1 << 60) + (1 << 36) + 1  # by way of a double it would be a tie, and round down
    got = apply_scalar("convert", [np.int64(value)], {"dtype": DType.f32})
    assert same(got, np.float32((1 << 60) + (1 << 37)))


def test_double_to_half_rounds_once():
    for dtype, unit in [(DType.f16, 2.0**-10), (DType.bf16, 2.0**-7)]:
        above = 1 + unit / 2 + 2.0**-50  # by way of a single it would be a tie, and round down
        below = 1 + 3 * unit / 2 - 2.0**-50
        assert float(run("convert", DType.f64, above, dtype=dtype)) == 1 + unit
        assert float(run("convert", DType.f64, below, dtype=dtype)) == 1 + unit
        assert float(run("convert", DType.f64, 1 + unit / 2, dtype=dtype)) == 1
        assert run("convert", DType.f64, 1e300, dtype=dtype) == INF
        assert np.isnan(run("convert", DType.f64, NAN, dtype=dtype))


@pytest.mark.parametrize("source", [*INTEGERS, *FLOATS])
def test_to_and_from_bool(source):
    assert run("convert", source, 0, dtype=DType.bool) == np.False_
    assert run("convert", source, 2, dtype=DType.bool) == np.True_
    assert same(apply_scalar("convert", [np.True_], {"dtype": source}), of(source, 1)[0])
    if source.is_float:
        assert run("convert", source, NAN, dtype=DType.bool) == np.True_
        assert run("convert", source, -0.0, dtype=DType.bool) == np.False_


@pytest.mark.parametrize(("a", "b"), [("f32", "i32"), ("f64", "u64"), ("f16", "u16"), ("bf16", "i16"), ("i8", "u8")])
def test_bitcast_there_and_back(a, b):
    source, target = DType(a), DType(b)
    value = of(source, -3)[0]
    there = apply_scalar("bitcast", [value], {"dtype": target})
    assert there.dtype == target.numpy
    assert there.tobytes() == value.tobytes()
    assert same(apply_scalar("bitcast", [there], {"dtype": source}), value)


def test_select():
    one, two = of(DType.f32, 1, NAN)
    assert same(apply_scalar("select", [np.True_, one, two], {}), one)
    assert same(apply_scalar("select", [np.False_, one, two], {}), two)


@pytest.mark.parametrize("dtype", [DType.f32, DType.f64])
def test_the_product_of_an_fma_does_not_overflow(dtype: DType) -> None:
    largest, infinite = dtype.numpy.type(np.finfo(dtype.numpy).max), dtype.numpy.type(np.inf)
    assert apply_scalar("fma", [largest, largest, -infinite], {}) == -infinite
    assert np.isnan(apply_scalar("fma", [infinite, largest, -infinite], {}))


def test_digamma_beside_zero() -> None:
    x = np.float32(-1.4e-45)
    assert apply_scalar("digamma", [x], {}) == np.float32(np.inf)
    assert float(apply_scalar("digamma", [np.float64(-1e-10)], {})) == pytest.approx(1e10 - 0.5772156649)
