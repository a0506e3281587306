"""Errors of the f32 functions over all 2**32 bit patterns, against the library's own f64 functions.

Those are held to 4 units of f64 against mpmath in `test_accuracy`, where a million f32 patterns are also compared with
NumPy. The comparison is a program of its own, so that all patterns of a function take seconds, not minutes.
"""


import numpy as np
import pytest

from lowering.runtime.compiled import CompiledProgram
from qdtrace.ir.builder import Builder, ref_var
from qdtrace.ir.program import Atom, Program, Var, literal
from qdtrace.ir.types import DType
from tests.runtime.programs import compiled, range_for

BOUND = 4.0
NAMES = (
    "exp", "exp2", "expm1", "log", "log2", "log1p", "logistic", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin",
    "acos", "atan", "asinh", "acosh", "atanh", "cbrt", "rsqrt", "erf", "erfc", "erf_inv",
)  # fmt: skip
SCALE = 1 << 20
"""Parts of a unit in the last place that are told apart."""
CHUNK = 1 << 28
_LARGEST = 2.0**128
_WRONG = 2000.0
"""The error of a result that is NaN where the other is not."""


def f64(value: float) -> Atom:
    return literal(value, DType.f64)


def i64(value: int) -> Atom:
    return literal(value, DType.i64)


def error(b: Builder, got: Var, want: Var) -> Var:
    """Distance of an f32 from an f64, in units of the last place of the f32 nearest to the f64."""
    got64 = b("convert", got, dtype=DType.f64)
    near = b("eq", got, b("convert", want, dtype=DType.f32))
    both_nan = b("and", b("ne", got, got), b("ne", want, want))
    # Past the largest f32 numbers continue as if there were more of them.
    got64, want = (b("max", b("min", v, f64(_LARGEST)), f64(-_LARGEST)) for v in (got64, want))
    exponent = b("and", b("shift_right_logical", b("bitcast", want, dtype=DType.i64), i64(52)), i64(0x7FF))
    unit = b("shift_left", b("sub", b("max", exponent, i64(1023 - 126)), i64(23)), i64(52))
    found = b("div", b("abs", b("sub", got64, want)), b("bitcast", unit, dtype=DType.f64))
    found = b("select", b("eq", found, found), b("min", found, f64(_WRONG)), f64(_WRONG))
    return b("select", b("or", near, both_nan), f64(0.0), found)


def widened(b: Builder, x: Var) -> tuple[Var, Var]:
    """An f32 in f64, and the same with zero for a subnormal number, as XLA's threads take it."""
    bits = b("bitcast", x, dtype=DType.u32)
    sign, size = (b("and", bits, literal(mask, DType.u32)) for mask in (1 << 31, (1 << 31) - 1))
    # The bits behind the point of a number between 1 and 2 are exact whatever the threads do.
    between = b("bitcast", b("or", size, literal(127 << 23, DType.u32)), dtype=DType.f32)
    small = b("mul", b("convert", b("sub", between, literal(1, DType.f32)), dtype=DType.f64), f64(2.0**-126))
    small = b("select", b("eq", sign, literal(0, DType.u32)), small, b("neg", small))
    flushed = b("convert", x, dtype=DType.f64)
    is_small = b("lt", size, literal(1 << 23, DType.u32))
    zero = b("select", b("eq", sign, literal(0, DType.u32)), f64(0.0), f64(-0.0))
    return b("select", is_small, small, flushed), b("select", is_small, zero, flushed)


def worst_error(name: str, offset: float = 0.0) -> CompiledProgram:
    """A program that gives the largest error, times SCALE, from the pattern `base` on."""
    base, worst = ref_var(DType.u32, (), "base"), ref_var(DType.u32, (), "worst")

    def body(b: Builder, i: Var) -> None:
        x = b("bitcast", b("add", b.load(base), b("convert", i, dtype=DType.u32)), dtype=DType.f32)
        got = b(name, x)
        errors = [error(b, got, b("mul", b(name, v), f64(1 + offset))) for v in widened(b, x)]
        b.accum(worst, b("convert", b("mul", b("min", *errors), f64(SCALE)), dtype=DType.u32), op="max")

    return compiled(Program(f"all_{name}", (base, worst), (), (range_for(body, CHUNK),), (worst,)), fast_math=False)


def over_all(made: CompiledProgram, chunks: int = (1 << 32) // CHUNK) -> float:
    """The largest error over the first chunks of patterns, in units in the last place."""
    worst = np.uint32(0)
    for k in range(chunks):
        (worst,) = made.call(np.uint32(k * CHUNK), worst)
    return int(np.asarray(worst)) / SCALE


@pytest.mark.full
def test_the_measure_sees_errors() -> None:
    """The first chunk holds positive numbers below 2**-63, where exp is 1: an error of 5 units there is found."""
    assert over_all(worst_error("exp"), 1) <= 0.5
    assert over_all(worst_error("exp", 5 * 2.0**-23), 1) == pytest.approx(5, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_f32_error_on_all_patterns(name: str) -> None:
    found = over_all(worst_error(name))
    print(f"{name}: {found:.3f}")
    assert found <= BOUND
