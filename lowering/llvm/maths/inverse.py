"""asin, acos, atan and atan2.

asin and acos: a polynomial for |x| <= 1/2, beyond that asin(x) = pi/2 - 2 asin(sqrt((1 - x) / 2)). atan: the argument
is reduced to [0, 1] by a reciprocal, in f64 further to |t| <= tan(pi/8) by atan(t) = pi/4 + atan((t - 1) / (t + 1)),
both with one division (the scheme of Cephes, S. L. Moshier 1989).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import COEFFICIENTS
from lowering.llvm.maths.formats import FORMATS

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

_TAN_PI_8 = 0.41421356237309503


def odd(b: Builder, x: Value, name: str) -> Value:
    """x + x**3 P(x**2)."""
    z = x * x
    return b.mad(x * z, b.poly(z, COEFFICIENTS[name, FORMATS[x.element].name]), x)


def _asin_parts(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(inner, p, large): |asin(x)| is p if |x| <= 1/2, else pi/2 - 2p."""
    size = b.abs(x)
    large = size > 0.5
    z = b.select(large, (1.0 - size) * 0.5, size * size)
    root = b.select(large, b.sqrt(z), size)
    p = b.mad(root * z, b.poly(z, COEFFICIENTS["asin", FORMATS[x.element].name]), root)
    return size, p, large


def asin(b: Builder, x: Value) -> Value:
    """Arc sine; NaN outside [-1, 1]."""
    pi = FORMATS[x.element].pi
    _, p, large = _asin_parts(b, x)
    far = b.fma(p, -2.0, pi[1] / 2) + pi[0] / 2
    return b.copysign(b.select(large, far, p), x)


def acos(b: Builder, x: Value) -> Value:
    """Arc cosine; NaN outside [-1, 1]."""
    pi = FORMATS[x.element].pi
    _, p, large = _asin_parts(b, x)
    # large: 2p or pi - 2p; small: pi/2 - p with the sign of x.
    far = b.select(x < 0.0, (pi[1] - (p + p)) + pi[0], p + p)
    near = (pi[1] / 2 - b.copysign(p, x)) + pi[0] / 2
    return b.select(large, far, near)


def _atan_quotient(b: Builder, num: Value, den: Value) -> tuple[Value, Value]:
    """(base, a): atan(num / den) = base + a for 0 <= num <= den; base is 0 or pi/4."""
    if num.element == "float":
        return b.value(0.0, num.element), odd(b, num / den, "atan")
    upper = num > den * _TAN_PI_8
    # num + den must not overflow; where `upper` does not hold, a subnormal num over a huge den is 0 either way.
    huge = den > 2.0**1020
    num, den = b.select(huge, num * 0.25, num), b.select(huge, den * 0.25, den)
    quotient = b.select(upper, num - den, num) / b.select(upper, num + den, den)
    return b.select(upper, FORMATS[num.element].pi[0] / 4, b.value(0.0, num.element)), odd(b, quotient, "atan")


def _with_base(b: Builder, base: Value, rest: Value) -> Value:
    """base + rest; base is a rounded multiple of pi/4, whose rounding error is added in proportion."""
    pi = FORMATS[base.element].pi
    return base + b.mad(base, pi[1] / pi[0], rest)


def atan(b: Builder, x: Value) -> Value:
    """Arc tangent."""
    pi = FORMATS[x.element].pi
    size = b.abs(x)
    large = size > 1.0
    base, rest = _atan_quotient(b, b.select(large, 1.0, size), b.select(large, size, 1.0))
    base = b.select(large, pi[0] / 2 - base, base)
    return b.copysign(_with_base(b, base, b.select(large, -rest, rest)), x)


def atan2(b: Builder, y: Value, x: Value) -> Value:
    """The angle of (x, y), with all of C99's cases of zeros and infinities."""
    pi = FORMATS[x.element].pi
    rise, run = b.abs(y), b.abs(x)
    steep = rise > run
    num, den = b.select(steep, run, rise), b.select(steep, rise, run)
    # 0/0 counts as 0/1 and inf/inf as 1/1.
    den = b.select(den.equals(0.0), 1.0, den)
    both = num.equals(math.inf)
    num, den = b.select(both, 1.0, num), b.select(both, 1.0, den)
    base, rest = _atan_quotient(b, num, den)
    base, rest = b.select(steep, pi[0] / 2 - base, base), b.select(steep, -rest, rest)
    left = b.bits(x) < 0
    base, rest = b.select(left, pi[0] - base, base), b.select(left, -rest, rest)
    result = b.copysign(_with_base(b, base, rest), y)
    return b.select(b.unordered(x, y), math.nan, result)
