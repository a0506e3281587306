"""Functions of doubles that NumPy, `math` and SciPy lack, or have with too large an error.

All are accurate to a few units in the last place of a double (relative to the larger term where two terms cancel),
so that a single precision result rounded from them is correct.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

_EULER = 0.5772156649015329


def fma(a: float, b: float, c: float) -> float:
    """Returns a * b + c with one rounding."""
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
    """Returns the sum of `high` and a smaller rest, rounded so that a second rounding to fewer bits is correct."""
    if low == 0 or not math.isfinite(high):
        return high
    mantissa_is_even = math.frexp(high)[0] * 2.0**53 % 2 == 0
    return math.nextafter(high, math.copysign(math.inf, low)) if mantissa_is_even else high


def fma_to_odd(a: float, b: float, c: float) -> float:
    """Returns a * b + c for single precision operands, such that rounding it to single rounds only once."""
    product = a * b  # exact: 48 bits
    total = product + c
    back = total - product
    return round_to_odd(total, (product - (total - back)) + (c - back))


def erf_inv(x: float) -> float:
    """Returns the inverse of erf; SciPy's loses the sign of zero."""
    return math.copysign(float(_scipy().erfinv(x)), x)


def lgamma(x: float) -> float:
    """Returns log |gamma(x)|; +inf at the poles."""
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
    for c in reversed(_taylor_at_two()):
        total = (total + c) * z
    return (total + (1.0 - _EULER)) * z


@cache
def _taylor_at_two() -> list[float]:
    """Returns Taylor coefficients of lgamma at 2 from the second order on: (zeta(k) - 1) / k, signs alternating."""
    return [float(_scipy().zetac(k)) / k * (1 if k % 2 == 0 else -1) for k in range(2, 34)]


def digamma(x: float) -> float:
    """Returns the derivative of lgamma; -inf at zero of either sign, NaN at the other poles.

    SciPy's has larger errors below zero, so there it is computed by the recurrence and by the reflection formula.
    """
    if x == 0:
        return -math.inf
    if math.isnan(x) or x == -math.inf or (x < 0 and x == math.floor(x)):
        return math.nan
    if x > 0:
        return float(_scipy().psi(x))
    if x > -0.5:  # one step of the recurrence: 1 / x may be all that is left
        return digamma(x + 1.0) - 1.0 / x
    fraction = x - math.floor(x)  # tan has period pi: reduce before the multiplication rounds
    return digamma(1.0 - x) - math.pi / math.tan(math.pi * (fraction if fraction <= 0.5 else fraction - 1.0))


def _scipy() -> Any:
    """Imports SciPy's functions, which takes longer than importing this package."""
    from scipy import special  # pyright: ignore[reportMissingTypeStubs]

    return special
