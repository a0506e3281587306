"""log, log2, log1p and the inverse hyperbolic functions made of them.

x = 2**e m with m in [sqrt(1/2), sqrt(2)), f = m - 1. In f32 log(1 + f) is a polynomial in f; in f64 one in s**2 with
s = f / (2 + f), put together as in fdlibm's e_log.c (Sun Microsystems, 1993), so that f itself is added last.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import COEFFICIENTS
from lowering.llvm.maths.formats import FORMATS

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

_LOG2_E = 1.4426950408889634


def split_exponent(b: Builder, x: Value) -> tuple[Value, Value]:
    """(m, e) with x = 2**e m, m in [sqrt(1/2), sqrt(2)), e an integer value; x a positive normal number."""
    form = FORMATS[x.element]
    moved = b.bits(x) - form.sqrt_half
    e = moved >> form.mantissa
    return b.from_bits(b.bits(x) - (e << form.mantissa)), e


def split_positive(b: Builder, x: Value) -> tuple[Value, Value]:
    """`split_exponent` for subnormal numbers too."""
    form = FORMATS[x.element]
    small = x < form.smallest
    lift = form.mantissa + 2
    m, e = split_exponent(b, b.select(small, x * 2.0**lift, x))
    return m, b.select(small, e - lift, e)


def log_sum(b: Builder, f: Value, e: Value) -> Value:
    """log(1 + f) + e ln 2 for f in the range of m - 1; e an integer as a float."""
    form = FORMATS[f.element]
    if form.name == "f32":
        tail = b.mad(f * f * f, b.poly(f, COEFFICIENTS["log", "f32"]), e * form.ln2[1])
        return b.fma(e, form.ln2[0], f + b.fma(f * f, -0.5, tail))
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    inner = b.mad(s, b.mad(z, b.poly(z, COEFFICIENTS["log", "f64"]), half_square), e * form.ln2[1])
    # f - half_square + inner, exact first: log(1 + f) = f - f**2/2 + s (f**2/2 + R).
    return b.fma(e, form.ln2[0], f - (half_square - inner))


def log_edges(b: Builder, x: Value, result: Value) -> Value:
    """The logarithm's values at 0, below it, at inf and for NaN."""
    result = b.select(x < math.inf, result, x)
    result = b.select(x.equals(0.0), -math.inf, result)
    return b.select(x < 0.0, math.nan, result)


def log(b: Builder, x: Value) -> Value:
    """Natural logarithm."""
    m, e = split_positive(b, x)
    return log_edges(b, x, log_sum(b, m - 1.0, b.float_of(e, x.element)))


def log2(b: Builder, x: Value) -> Value:
    """Logarithm to base 2, exact at powers of 2."""
    m, e = split_positive(b, x)
    f, whole = m - 1.0, b.float_of(e, x.element)
    if x.element == "float":
        return log_edges(b, x, b.fma(f, b.poly(f, COEFFICIENTS["log2", "f32"]), whole))
    return log_edges(b, x, b.fma(log_sum(b, f, b.value(0.0, x.element)), _LOG2_E, whole))


def log1p_plus(b: Builder, x: Value, extra: Value | None = None) -> Value:
    """log(1 + x) + extra ln 2 for -1 < x < inf; wrong for |x| below the rounding of 1 (0 is right)."""
    form = FORMATS[x.element]
    m, e = split_exponent(b, x + 1.0)
    # (1 + x) / 2**e - 1 with one rounding; where 1 is lost in x anyway, m has it all.
    scale = b.from_bits((form.bias - e) << form.mantissa)
    f = b.select(x > 2.0 ** (form.mantissa + 2), m - 1.0, b.fma(x, scale, scale - 1.0))
    whole = b.float_of(e, x.element)
    return log_sum(b, f, whole if extra is None else whole + extra)


def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x)."""
    result = log1p_plus(b, x)
    result = b.select(b.abs(x) < FORMATS[x.element].rounding, x, result)
    result = b.select(x < math.inf, result, x)
    result = b.select(x.equals(-1.0), -math.inf, result)
    return b.select(x < -1.0, math.nan, result)


def asinh(b: Builder, x: Value) -> Value:
    """log1p(|x| + x**2 / (1 + sqrt(1 + x**2))); for large |x| log(|x|) + ln 2."""
    form = FORMATS[x.element]
    size = b.abs(x)
    large = size > 2.0 ** (form.mantissa + 4)
    square = size * size
    inner = b.select(large, size, size + square / (b.sqrt(square + 1.0) + 1.0))
    result = log1p_plus(b, inner, b.select(large, 1.0, b.value(0.0, x.element)))
    result = b.select(size < form.rounding, size, result)
    return b.copysign(b.select(size < math.inf, result, size), x)


def acosh(b: Builder, x: Value) -> Value:
    """log1p(t + sqrt(t (t + 2))) with t = x - 1; for large x log(x) + ln 2."""
    form = FORMATS[x.element]
    large = x > 2.0 ** (form.mantissa + 4)
    t = x - 1.0
    inner = b.select(large, x, t + b.sqrt(t * (t + 2.0)))
    result = log1p_plus(b, inner, b.select(large, 1.0, b.value(0.0, x.element)))
    result = b.select(x < math.inf, result, x)
    return b.select(x < 1.0, math.nan, b.select(x.equals(1.0), 0.0, result))


def atanh(b: Builder, x: Value) -> Value:
    """log1p(2|x| / (1 - |x|)) / 2."""
    size = b.abs(x)
    result = log1p_plus(b, (size + size) / (1.0 - size)) * 0.5
    result = b.select(size < FORMATS[x.element].rounding, size, result)
    result = b.select(size.equals(1.0), math.inf, result)
    return b.copysign(b.select(size > 1.0, math.nan, result), x)
