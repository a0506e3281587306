"""lgamma and digamma, computed in f64 for both types.

Near the origin both are shifted by their recurrences to an interval of length 1 with a polynomial that has the zeros
there as exact factors (lgamma: 2; digamma: 1.4616...); far away their asymptotic series (Stirling) are used; negative
arguments are reflected. At the zeros on the negative axis the difference of the two reflected terms cancels: there the
error is absolute, of the size of the terms' rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import COEFFICIENTS
from lowering.llvm.maths.formats import FORMATS
from lowering.llvm.maths.inverse import odd
from lowering.llvm.maths.logarithm import log
from lowering.llvm.maths.trigonometric import sin_cos

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

_HALF_LOG_2_PI = 0.9189385332046727418
_DIGAMMA_ZERO = (1.4616321449683622, 9.549995429965697e-17)
"""The positive zero of digamma in two parts."""


def lgamma(b: Builder, x: Value) -> Value:
    """log(|gamma(x)|); inf at 0 and the negative integers."""
    precision, wide = FORMATS[x.element].name, b.resize(x, "double")
    size = b.abs(wide)
    # Below 1.28 the recurrence divides: from there on its cancellation would cost more than the longer polynomial.
    tiny, small, far = size < 0.5, size < 1.28, size >= 8.0
    # gamma(x) = product * gamma(y), y in [1.28, 2.5).
    y, product = b.select(far, 2.0, size), b.value(1.0, "double")
    for _ in range(6):
        high = y >= 2.5
        y = b.select(high, y - 1.0, y)
        product = b.select(high, product * y, product)
    d = b.select(tiny, wide, b.select(small, size - 1.0, y - 2.0))
    argument = b.select(tiny, size * (wide + 1.0), b.select(small | far, size, product))
    logarithm = log(b, argument)
    near = b.mad(d, b.poly(d, COEFFICIENTS["lgamma", precision]), b.select(small, -logarithm, logarithm))
    reciprocal = 1.0 / size
    series = b.poly(reciprocal * reciprocal, COEFFICIENTS["stirling", precision]) * reciprocal
    stirling = b.mad(size - 0.5, logarithm - 1.0, series + (_HALF_LOG_2_PI - 0.5))
    positive = b.select(far, stirling, near)
    fraction = size - b.trunc(size)
    # sin(pi size) up to its sign, by the sine or the cosine of at most pi/4.
    fold = b.select(fraction > 0.5, 1.0 - fraction, fraction)
    steep = fold > 0.25
    sine, cosine = sin_cos(b, b.select(steep, 0.5 - fold, fold) * math.pi)
    sine = b.select(steep, cosine, sine)
    reflected = log(b, math.pi / (size * sine)) - positive
    reflected = b.select(fraction.equals(0.0), math.inf, reflected)
    result = b.select((wide < 0.0) & ~tiny, reflected, positive)
    return b.resize(b.select(size.equals(math.inf), math.inf, result), x.element)


def digamma(b: Builder, x: Value) -> Value:
    """The derivative of lgamma; -inf at 0 of either sign, NaN at the negative integers and -inf."""
    precision, wide = FORMATS[x.element].name, b.resize(x, "double")
    size = b.abs(wide)
    negative = wide < 0.0
    a = b.select(negative, size + 1.0, wide)
    far, below = a >= 6.0, a < 1.0
    # digamma(a) = digamma(y) + top / bottom, y in [1, 2).
    y = b.select(far, 1.5, b.select(below, a + 1.0, a))
    top, bottom = b.select(below, -1.0, b.value(0.0, "double")), b.select(below, a, 1.0)
    for _ in range(4):
        high = y >= 2.0
        y = b.select(high, y - 1.0, y)
        top = b.select(high, b.mad(top, y, bottom), top)
        bottom = b.select(high, bottom * y, bottom)
    zero, zero_low = _DIGAMMA_ZERO
    near = b.mad((y - zero) - zero_low, b.poly(y - 1.5, COEFFICIENTS["digamma", precision]), top / bottom)
    reciprocal = 1.0 / a
    w = reciprocal * reciprocal
    tail = b.mad(w, b.poly(w, COEFFICIENTS["digamma_tail", precision]), reciprocal * -0.5)
    positive = b.select(far, log(b, a) + tail, near)
    # Reflection: pi cot(pi size), with the quarter turn nearest to the fraction taken off.
    fraction = size - b.trunc(size)
    middle, upper = (fraction > 0.25) & (fraction < 0.75), fraction >= 0.75
    off = fraction - b.select(middle, 0.5, b.select(upper, 1.0, b.value(0.0, "double")))
    t = odd(b, off * math.pi, "tan")
    reflected = b.mad(b.select(middle, -t, 1.0 / t), math.pi, positive)
    result = b.select(negative, reflected, positive)
    pole = (wide <= 0.0) & (fraction.equals(0.0) | size.equals(math.inf))
    return b.resize(b.select(wide.equals(0.0), -math.inf, b.select(pole, math.nan, result)), x.element)
