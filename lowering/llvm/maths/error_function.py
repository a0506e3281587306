"""erf, erfc and the inverse of erf.

erfc(x) = exp(-x**2) W(t) / (1 + 2x) with t = (x - 3) / (x + 3), after M. M. Shepherd and J. G. Laframboise, Chebyshev
approximation of (1 + 2x) exp(x**2) erfc x (1981); x**2 is carried with its rounding error. The inverse is a polynomial
in w = -log(1 - x**2), for large w in sqrt(w) (M. Giles, Approximating the erfinv function, 2010); in f64 one step of
Halley's method follows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import COEFFICIENTS
from lowering.llvm.maths.exponential import exp, exp2, reduce_exp
from lowering.llvm.maths.formats import FORMATS
from lowering.llvm.maths.logarithm import log_sum, split_exponent

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

_ENDS = {"f32": 10.5, "f64": 28.0}
"""erfc of more is 0."""


def _erf_small(b: Builder, x: Value) -> Value:
    """erf(x) for |x| <= 1."""
    return b.fma(x, b.poly(x * x, COEFFICIENTS["erf", FORMATS[x.element].name]), x)


def _erfc_large(b: Builder, x: Value, precision: str) -> Value:
    """erfc(x) for x >= 1/2, in f64; the factors' own rounding errors go into the last multiply-add."""
    x = b.at_most(x, _ENDS[precision])
    weight = b.poly((x - 3.0) / (x + 3.0), COEFFICIENTS["erfcx", precision])
    den, den_low = b.two_sum(x + x, b.value(1.0, "double"))
    reciprocal = 1.0 / den
    scaled = weight * reciprocal
    scaled_low = (b.fma(-scaled, den, weight) - scaled * den_low) * reciprocal
    square, square_low = b.two_product(x, x)
    _, m, n = reduce_exp(b, -square)
    power, power_low = b.fast_two_sum(1.0, m)
    power_low = b.fma(-square_low, power, power_low)
    return b.ldexp(b.fma(power, scaled, b.mad(power, scaled_low, power_low * scaled)), n)


def erf(b: Builder, x: Value) -> Value:
    """The error function."""
    size = b.abs(x)
    if x.element == "float":
        tail = exp2(b, -b.poly(b.at_most(size, 4.1), COEFFICIENTS["erf_tail", "f32"]))
    else:
        tail = _erfc_large(b, b.at_most(size, 6.5), "f64")
    return b.copysign(b.select(size < 1.0, _erf_small(b, size), 1.0 - tail), x)


def erfc(b: Builder, x: Value) -> Value:
    """1 - erf(x), accurate where it is small."""
    size, element = b.abs(x), x.element
    tail = _erfc_large(b, b.resize(size, "double"), FORMATS[element].name)
    far = b.resize(b.select(x < 0.0, 2.0 - tail, tail), element)
    return b.select(size < 0.5, 1.0 - _erf_small(b, x), far)


def _start(b: Builder, x: Value, precision: str) -> Value:
    """The inverse of erf by polynomials, for 0 <= x < 1 in f64."""
    m, e = split_exponent(b, b.fma(-x, x, 1.0))
    w = -log_sum(b, m - 1.0, b.float_of(e, "double"))
    near = b.poly(w - 3.0, COEFFICIENTS["erf_inv", precision])
    far = b.poly(b.sqrt(w) - 4.0, COEFFICIENTS["erf_inv_tail", precision])
    return x * b.select(w < 6.1, near, far)


def erf_inv(b: Builder, x: Value) -> Value:
    """The y with erf(y) = x; inf at 1, NaN beyond."""
    size = b.resize(b.abs(x), "double")
    y = _start(b, size, FORMATS[x.element].name)
    if x.element == "double":
        y = _halley(b, size, y)
    result = b.select(size < 1.0, y, b.select(size.equals(1.0), math.inf, b.value(math.nan, "double")))
    return b.copysign(b.resize(result, x.element), x)


def _halley(b: Builder, x: Value, y: Value) -> Value:
    """One step towards erf(y) = x; for x near 1 towards erfc(y) = 1 - x."""
    off = b.select(x < 0.8, _erf_small(b, y) - x, (1.0 - x) - _erfc_large(b, y, "f64"))
    step = off * (math.sqrt(math.pi) / 2) * exp(b, y * y)
    return y - step / b.mad(y, step, 1.0)
