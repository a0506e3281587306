"""pow, cbrt, rsqrt.

pow in f32 is exp2(y log2(x)) with everything in f64. pow in f64 carries log(x) as a sum of two numbers with about 68
bits: log(m) = 2 atanh(s), s = (m - 1) / (m + 1), its leading terms by error-free transformations.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import COEFFICIENTS
from lowering.llvm.maths.exponential import reduce_exp
from lowering.llvm.maths.formats import FORMATS
from lowering.llvm.maths.logarithm import split_exponent, split_positive

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value


def _magnitude_f32(b: Builder, size: Value, y: Value) -> Value:
    """size**y for a finite size > 0."""
    wide = b.resize(size, "double")
    m, e = split_exponent(b, wide)
    f = m - 1.0
    log2 = b.mad(f, b.poly(f, COEFFICIENTS["log2_pow", "f32"]), b.float_of(e, "double"))
    exponent = b.resize(y, "double") * log2
    # Beyond these the f32 result is inf or 0; NaN (inf * 0: a base of 1) is put right by the caller.
    exponent = b.at_least(b.at_most(exponent, 160.0), -180.0)
    whole, n = b.round_scaled(exponent, 1.0)
    fraction = b.poly(exponent - whole, COEFFICIENTS["exp2_pow", "f32"])
    return b.resize(b.from_bits(b.bits(fraction) + (n << 52)), "float")


def _log_parts(b: Builder, size: Value) -> tuple[Value, Value]:
    """log(size) as high + low, relative error about 2**-67; size finite and > 0."""
    ln2 = FORMATS["double"].ln2_short
    m, e = split_positive(b, size)
    f, whole = m - 1.0, b.float_of(e, "double")
    den, den_low = b.fast_two_sum(2.0, f)
    s = f / den
    s_low = (b.fma(-s, den, f) - s * den_low) / den
    z, z_low = b.two_product(s, s)
    z_low = b.mad(s + s, s_low, z_low)
    # atanh(s) = s (1 + z (1/3 + rest)), rest = z P(z) small enough for one number.
    rest = z * b.poly(z, COEFFICIENTS["log_pow", "f64"])
    third, third_low = b.fast_two_sum(1 / 3, rest)
    third_low = third_low + _THIRD_LOW
    t, t_low = b.two_product(z, third)
    t_low = t_low + b.mad(z, third_low, z_low * third)
    u, u_low = b.two_product(s, t)
    u_low = u_low + b.mad(s, t_low, s_low * t)
    log, log_low = b.fast_two_sum(s, u)
    log_low = log_low + (u_low + s_low)
    # whole * ln2[0] is exact: its low 11 bits are zero.
    high, high_low = b.two_sum(whole * ln2[0], log + log)
    low = high_low + b.mad(whole, ln2[1], log_low + log_low)
    return b.fast_two_sum(high, low)


_THIRD_LOW = 1.850371707708594e-17
"""1/3 minus the f64 number nearest to it."""


def _magnitude_f64(b: Builder, size: Value, y: Value) -> Value:
    """size**y for a finite size > 0."""
    high, low = _log_parts(b, size)
    # |log| is 0 or at least 2**-53: larger exponents give the same 0, 1 or inf, and no product overflows.
    y = b.at_least(b.at_most(y, 2.0**70), -(2.0**70))
    product, product_low = b.two_product(y, high)
    product_low = b.mad(y, low, product_low)
    clamped = b.at_least(b.at_most(product, 720.0), -760.0)
    product_low = b.select(clamped.equals(product), product_low, 0.0)
    _, m, n = reduce_exp(b, clamped)
    return b.ldexp(b.mad(m + 1.0, product_low, m) + 1.0, n)


def pow(b: Builder, x: Value, y: Value) -> Value:
    """x**y; bases that are not positive and finite, and infinite or NaN exponents, in a cold function."""
    magnitude = _magnitude_f32 if x.element == "float" else _magnitude_f64
    quick = magnitude(b, b.abs(x), y)
    plain = (x > 0.0) & (x < math.inf) & (b.abs(y) < math.inf)
    return b.rarely(~plain, "pow_patch", [quick], x, y, quick)[0]


def patch(b: Builder, x: Value, y: Value, quick: Value) -> Value:
    """All of C99's special cases of x**y; `quick` is |x|**y where x is finite and not 0."""
    size = b.abs(x)
    # 0 and inf: the base's side of 1 and the exponent's sign decide.
    end = size.equals(0.0) | size.equals(math.inf)
    vanishes = size.equals(0.0) ^ (y < 0.0)
    result = b.select(end, b.select(vanishes, 0.0, b.value(math.inf, x.element)), quick)
    whole = b.trunc(y).equals(y)
    half = y * 0.5
    odd = whole & b.trunc(half).differs(half)
    result = b.select((b.bits(x) < 0) & odd, -result, result)
    result = b.select((x < 0.0) & ~whole & ~end, math.nan, result)
    result = b.select(b.unordered(x, y), math.nan, result)
    one = x.equals(1.0) | y.equals(0.0) | (size.equals(1.0) & b.abs(y).equals(math.inf))
    return b.select(one, 1.0, result)


def cbrt(b: Builder, x: Value) -> Value:
    """Cube root: m**(-1/3) by a polynomial and one step of third order, times m twice, and one Newton step."""
    form = FORMATS[x.element]
    size = b.abs(x)
    # Subnormal numbers are m * 2**(1 - bias): their bits behind the point of a number between 1 and 2, less 1. No
    # operation sees them, because XLA's threads take subnormal operands for zero.
    raw = b.bits(size)
    small = raw < (1 << form.mantissa)
    spare = -(form.bias - 1) % 3
    lift = form.bias - 1 + spare
    lifted = (b.from_bits(raw | (form.bias << form.mantissa)) - 1.0) * 2.0**spare
    bits = b.select(small, b.bits(lifted), raw)
    # The exponent plus `offset`, divided by 3 through a multiplication; offset is a multiple of 3.
    offset = 3 * (form.bias // 3 + 1)
    exponent = (bits >> form.mantissa) - (form.bias - offset)
    third = (exponent * 43691) >> 17
    left = exponent - third * 3
    fraction = b.from_bits((bits & ((1 << form.mantissa) - 1)) | (form.bias << form.mantissa))
    scaled = b.from_bits(b.bits(fraction) + (left << form.mantissa))
    root = b.select(left.equals(1), 2.0 ** (-1 / 3), b.select(left.equals(2), 2.0 ** (-2 / 3), b.value(1.0, x.element)))
    z = b.poly(fraction, COEFFICIENTS["cbrt", form.name]) * root
    error = b.fma(-scaled * z, z * z, 1.0)
    z = b.mad(z * error, b.mad(error, 2 / 9, 1 / 3), z)
    square = z * z
    y = scaled * square
    # y**3 - m with the product's own rounding error; the derivative is 3 y**2 = 3 / z**2.
    power, power_low = b.two_product(y, y)
    residual = b.fma(power, y, -scaled) + power_low * y
    y = b.mad(residual * square, -1 / 3, y)
    shift = third - offset // 3 - b.select(small, b.value(lift // 3, form.integer), 0)
    result = y * b.power_of_two(shift, x.element)
    keep = raw.equals(0) | ~(size < math.inf)
    return b.select(keep, x, b.copysign(result, x))


def rsqrt(b: Builder, x: Value) -> Value:
    """1 / sqrt(x), two roundings."""
    return 1.0 / b.sqrt(x)
