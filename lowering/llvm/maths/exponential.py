"""exp, exp2, expm1 and what is made of them: logistic, sinh, cosh, tanh.

x = n ln 2 + r with n the nearest integer, so |r| <= ln(2) / 2 (W. J. Cody and W. Waite, Software Manual for the
Elementary Functions, 1980: ln 2 in two parts), then a polynomial for expm1(r) and a scaling by 2**n.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import COEFFICIENTS
from lowering.llvm.maths.formats import FORMATS
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

_LOG2_E = 1.4426950408889634


@frozen(slots=True)
class Range:
    """The arguments beyond which exp is not a finite, nonzero number, and expm1 is trivial."""

    low: float
    """exp of less rounds to 0, exp2 of low / ln 2 too."""
    high: float
    """exp of more overflows; two more keeps the scaling in range."""
    one: float
    """expm1 of less than -one rounds to -1; exp of more than one is its own expm1 after rounding."""
    tiny: float
    """expm1 of less rounds to its argument."""


RANGES = {"float": Range(-104.0, 89.0, 20.0, 2.0**-26), "double": Range(-746.0, 710.0, 40.0, 2.0**-55)}


def reduce_exp(b: Builder, x: Value) -> tuple[Value, Value, Value]:
    """(r, expm1(r), n) with x = n ln 2 + r; x within the range of n."""
    form = FORMATS[x.element]
    whole, n = b.round_scaled(x, _LOG2_E)
    r = b.fma(whole, -form.ln2[0], x)
    r = b.fma(whole, -form.ln2[1], r)
    return r, b.mad(r * r, b.poly(r, COEFFICIENTS["exp", form.name]), r), n


def exp_scaled(b: Builder, x: Value, shift: int) -> Value:
    """2**shift * exp(x) without an overflow in between."""
    limits = RANGES[x.element]
    _, m, n = reduce_exp(b, b.at_least(b.at_most(x, limits.high + 2.0), limits.low))
    return b.ldexp(m + 1.0, n + shift if shift else n)


def exp(b: Builder, x: Value) -> Value:
    """e**x."""
    return exp_scaled(b, x, 0)


def exp2(b: Builder, x: Value) -> Value:
    """2**x; the reduction is exact."""
    form = FORMATS[x.element]
    x = b.at_least(b.at_most(x, form.bias + 2.0), -form.bias - form.mantissa - 3.0)
    whole, n = b.round_scaled(x, 1.0)
    r = x - whole
    return b.ldexp(b.mad(r, b.poly(r, COEFFICIENTS["exp2", form.name]), 1.0), n)


def expm1(b: Builder, x: Value) -> Value:
    """e**x - 1."""
    limits = RANGES[x.element]
    _, m, n = reduce_exp(b, b.at_least(b.at_most(x, limits.high), -limits.one))
    scale = b.power_of_two(n - 1, x.element)
    return b.select(b.abs(x) < limits.tiny, x, b.fma(m, scale, scale - 0.5) * 2.0)


def logistic(b: Builder, x: Value) -> Value:
    """1 / (1 + exp(-x)), also where the result is tiny: e / (1 + e) with e = exp(-|x|)."""
    e = exp(b, -b.abs(x))
    return b.select(x < 0.0, e, 1.0) / (e + 1.0)


def tanh(b: Builder, x: Value) -> Value:
    """h / (h + 1) with h = expm1(2|x|) / 2."""
    limits = RANGES[x.element]
    size = b.abs(x)
    _, m, n = reduce_exp(b, b.at_most(size + size, limits.one + 4.0))
    scale = b.power_of_two(n - 1, x.element)
    h = b.fma(m, scale, scale - 0.5)
    return b.select(size < limits.tiny, x, b.copysign(h / (h + 1.0), x))


def sinh(b: Builder, x: Value) -> Value:
    """h + h / (2h + 1) with h = expm1(|x|) / 2; exp(|x|) / 2 from where that is the same."""
    limits, size = RANGES[x.element], b.abs(x)
    _, m, n = reduce_exp(b, b.at_most(size, limits.high + 2.0))
    large = b.ldexp(m + 1.0, n - 1)
    scale = b.power_of_two(b.select(n < 64, n, 64) - 1, x.element)
    h = b.fma(m, scale, scale - 0.5)
    small = h + h / (h + (h + 1.0))
    return b.select(size < limits.tiny, x, b.copysign(b.select(size > limits.one, large, small), x))


def cosh(b: Builder, x: Value) -> Value:
    """h + 1 / (4h) with h = exp(|x|) / 2."""
    h = exp_scaled(b, b.abs(x), -1)
    return h + 0.25 / h
