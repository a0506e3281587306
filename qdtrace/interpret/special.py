"""Functions of doubles that neither NumPy nor `math` has, or has with too large an error.

All are accurate to a few units in the last place of a double (relative to the larger term where two terms cancel),
so that a single precision result rounded from them is right.
"""

from __future__ import annotations

import math
from fractions import Fraction

_EULER = 0.5772156649015329
_ZETA_MINUS_ONE = (
    0.6449340668482264, 0.2020569031595943, 0.08232323371113819, 0.03692775514336993, 0.01734306198444914,
    0.008349277381922827, 0.00407735619794434, 0.0020083928260822143, 0.0009945751278180853,
    0.0004941886041194645, 0.0002460865533080483, 0.00012271334757848915, 6.124813505870483e-05,
    3.058823630702049e-05, 1.528225940865187e-05, 7.637197637899763e-06, 3.81729326499984e-06,
    1.908212716553939e-06, 9.539620338727962e-07, 4.769329867878064e-07, 2.38450502727733e-07,
    1.1921992596531106e-07, 5.960818905125948e-08, 2.980350351465228e-08, 1.4901554828365043e-08,
    7.45071178983543e-09, 3.725334024788457e-09, 1.862659723513049e-09, 9.313274324196682e-10,
    4.656629065033784e-10, 2.3283118336765053e-10, 1.164155017270052e-10,
)  # fmt: skip
"""zeta(k) - 1 for k = 2, 3, ...: the Taylor coefficients of lgamma at 2."""
_ROOT = 1.4616321449683622
_ROOT_TAIL = 9.549995429965697e-17
_DIGAMMA_AT_ROOT = (
    0.9676722454476212, -0.4427631689835921, 0.258499760955651, -0.16394270544240652, 0.10782405069126237,
    -0.07219956125645471, 0.04880428816414311, -0.03316112647484736, 0.022597648232218104,
    -0.01542476590494896, 0.010538791616612175, -0.007204534386356869, 0.004926781395729853,
    -0.003369801655439328, 0.002305126326734928, -0.0015769367714301972, 0.0010788252019162967,
    -0.0007380709389960052, 0.000504953265834602, -0.0003454680251063077, 0.00023635601564027053,
    -0.00016170622091974803, 0.0001106337276874741, -7.569179582195066e-05, 5.178575795222081e-05,
)  # fmt: skip
"""Taylor coefficients of digamma at its positive root, from the first order on."""
_BERNOULLI = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
"""B(2k) / 2k: the asymptotic series of digamma in 1 / x**2."""
_HALF_SQRT_PI = 0.886226925452758


def fma(a: float, b: float, c: float) -> float:
    """a * b + c with one rounding."""
    if not math.isfinite(c) and math.isfinite(a) and math.isfinite(b):
        return c  # the product may overflow, but is finite
    plain = a * b + c
    if not (math.isfinite(a) and math.isfinite(b)):
        return plain
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:  # the product is exact then (or a factor is zero), so the plain sum has the right sign
        return plain
    try:
        return exact.numerator / exact.denominator  # the division of integers rounds to nearest even
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def round_to_odd(high: float, low: float) -> float:
    """The sum of `high` and a smaller rest, rounded so that a second rounding to fewer bits is right."""
    if low == 0 or not math.isfinite(high):
        return high
    mantissa_is_even = math.frexp(high)[0] * 2.0**53 % 2 == 0
    return math.nextafter(high, math.copysign(math.inf, low)) if mantissa_is_even else high


def fma_to_odd(a: float, b: float, c: float) -> float:
    """a * b + c for single precision operands: round the result to single and it is rounded once."""
    product = a * b  # exact: 48 bits
    total = product + c
    back = total - product
    return round_to_odd(total, (product - (total - back)) + (c - back))


def erf_inv(x: float) -> float:
    """The inverse of erf: a starting value by Winitzki's formula, then Halley steps."""
    if not -1.0 < x < 1.0:
        return math.copysign(math.inf, x) if abs(x) == 1.0 else math.nan
    a = abs(x)
    if a < 1e-9:
        return x * (2.0 * _HALF_SQRT_PI / 2.0)
    rest = 1.0 - a  # exact from 0.5 on, where the tail is what counts
    t = math.log1p(-a * a)
    s = 2.0 / (math.pi * 0.147) + 0.5 * t
    y = math.sqrt(math.sqrt(s * s - t / 0.147) - s)
    for _ in range(4):
        error = rest - math.erfc(y) if a > 0.5 else math.erf(y) - a
        step = error * _HALF_SQRT_PI * math.exp(y * y)
        y -= step / (1.0 + y * step)
    return math.copysign(y, x)


def lgamma(x: float) -> float:
    """log |gamma(x)|; +inf at the poles."""
    if math.isinf(x):
        return math.inf
    if x <= 0 and x == math.floor(x):
        return math.inf
    if 0.5 <= x <= 1.5:  # the zeros at 1 and 2 need the series
        return _lgamma_from_two(x - 1.0) - math.log1p(x - 1.0)
    if 1.5 < x <= 2.5:
        return _lgamma_from_two(x - 2.0)
    try:
        return math.lgamma(x)
    except OverflowError:
        return math.inf


def _lgamma_from_two(z: float) -> float:
    total = 0.0
    for k in range(len(_ZETA_MINUS_ONE) + 1, 1, -1):
        total = (total + (_ZETA_MINUS_ONE[k - 2] / k) * (1 if k % 2 == 0 else -1)) * z
    return (total + (1.0 - _EULER)) * z


def digamma(x: float) -> float:
    """The derivative of lgamma; NaN at the poles."""
    if math.isnan(x) or x == -math.inf or (x <= 0 and x == math.floor(x)):
        return math.nan
    if x == math.inf:
        return x
    if -0.5 < x < 0:  # one step of the recurrence: 1 / x may be all that is left
        return digamma(x + 1.0) - 1.0 / x
    if x < 0:
        fraction = x - math.floor(x)  # tan has period pi: reduce before the multiplication rounds
        return digamma(1.0 - x) - math.pi / math.tan(math.pi * (fraction if fraction <= 0.5 else fraction - 1.0))
    distance = (x - _ROOT) - _ROOT_TAIL
    if abs(distance) <= 0.25:
        total = 0.0
        for c in reversed(_DIGAMMA_AT_ROOT):
            total = (total + c) * distance
        return total
    if x < 1.5:
        return digamma(x + 1.0) - 1.0 / x
    if x < 14.0:  # down to 2, where the series of lgamma differentiates to ours; every term is positive
        shift = 0.0
        while x > 2.5:
            x -= 1.0
            shift += 1.0 / x
        return shift + _digamma_from_two(x - 2.0)
    w = 1.0 / (x * x)
    series = 0.0
    for c in reversed(_BERNOULLI):
        series = (series + c) * w
    return math.log(x) - 0.5 / x - series


def _digamma_from_two(z: float) -> float:
    total = 0.0
    for k in range(len(_ZETA_MINUS_ONE) + 1, 1, -1):
        total = (total + _ZETA_MINUS_ONE[k - 2] * (1 if k % 2 == 0 else -1)) * z
    return total + (1.0 - _EULER)
