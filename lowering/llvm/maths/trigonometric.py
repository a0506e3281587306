"""sin, cos and tan for every finite argument.

|x| = n pi/2 + r with |r| <= pi/4, then the sine or cosine polynomial of r, whichever n asks for. Up to a limit, r is
made from pi in three parts with fused multiply-adds: the first difference is exact because both terms are multiples of
the last bit of pi's first part. Beyond it x * 2/pi modulo 4 is taken from as many bits of 2/pi as three words hold,
beginning where the product is below 4 (M. H. Payne and R. N. Hanek, Radian reduction for trigonometric functions,
1983), in a cold function. It needs no memory: the words are chosen by the bits of the exponent.

In f32 sine and cosine up to that limit take half turns: x = k pi + r, or |x| = (k + 1/2) pi - r, with |r| <= pi/2, and
one polynomial, whose sign the parity of k turns. That is two thirds of the instructions. Its coefficients are chosen so
that roundings near r = pi/2 do not exceed 1, and that the cosine of 0 is 1. Quarter turns stay where cold functions are
inlined (kernels of GPUs), where one function gives sine and cosine: those of one angle share it.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.builder import width
from lowering.llvm.maths.coefficients import COEFFICIENTS, TWO_OVER_PI, TWO_OVER_PI_BITS
from lowering.llvm.maths.formats import FORMATS
from lowering.llvm.maths.inverse import odd

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

LIMITS = {"float": 1e5, "double": 2.0**28}
"""Largest |x| whose reduction by pi in three parts is accurate to the last bit."""
_TOP = {"float": 31, "double": 63}
"""The sign's bit."""


def sin_cos(b: Builder, r: Value) -> tuple[Value, Value]:
    """Sine and cosine of |r| <= pi/4."""
    z = r * r
    cosine = b.mad(z * z, b.poly(z, COEFFICIENTS["cos", FORMATS[r.element].name]), b.mad(z, -0.5, 1.0))
    return odd(b, r, "sin"), cosine


def _reduce(b: Builder, x: Value) -> tuple[Value, Value]:
    """(r, n) with |x| = n pi/2 + r; n is right modulo 4. r is NaN for NaN and infinities."""
    size = b.abs(x)
    whole, n = b.round_scaled(size, 2 / math.pi)
    r = size
    for part in FORMATS[size.element].pi:
        r = b.fma(whole, -part / 2, r)
    r, n = b.rarely_above(size, LIMITS[size.element], "reduce_huge", (r, n), size)
    return r, n


def _window(b: Builder, exponent: Value) -> list[Value]:
    """Three words of 2/pi, most significant first, for a number of at least 2 by the bits of its exponent.

    Times all bits before them the number is a multiple of 4. The largest power of two of the exponent's bits is set:
    the bits below choose words, and the place in a word.
    """
    bits, form = width(exponent.element), FORMATS["float" if exponent.element == "i32" else "double"]
    choices = (form.bias + 1) // bits
    places = TWO_OVER_PI_BITS + form.mantissa + 1  # zeros come first, for small exponents
    words = [
        b.value(TWO_OVER_PI >> (places - bits * (k + 1)) & ((1 << bits) - 1), exponent.element)
        for k in range(choices + 3)
    ]
    while choices > 1:
        choices //= 2
        later = (exponent & (choices * bits)).differs(0)
        words = [b.select(later, far, near) for near, far in zip(words, words[choices:], strict=False)]
    return [b.funnel(high, low, exponent) for high, low in itertools.pairwise(words)]


def reduce_huge(b: Builder, size: Value) -> tuple[Value, Value]:
    """(r, n) with size = n pi/2 + r and n modulo 4, for size of at least 2; r is NaN for infinities."""
    form = FORMATS[size.element]
    pattern = b.bits(size)
    word, bits, precision = pattern.element, width(pattern.element), form.mantissa + 1
    double = f"i{2 * bits}"
    exponent = b.shift_right(pattern, form.mantissa)
    significand = (pattern & ((1 << form.mantissa) - 1)) | (1 << form.mantissa)
    first, second, third = _window(b, exponent)
    # The upper two words of the product of three: two bits before the binary point, whole turns fall off at the top.
    factor = b.zero_extend(significand, double)
    carried = b.shift_right(factor * b.zero_extend(third, double), bits)
    product = factor * b.zero_extend(second, double) + carried
    product = product + (b.zero_extend(significand * first, double) << bits)
    # Two halves round to the nearest quarter turn, and the fraction to a signed number of the significand's size.
    left = bits - 3 - precision
    product = product + ((1 << (2 * bits - 3)) + (1 << (bits + left - 1)))
    high, low = b.resize(b.shift_right(product, bits), word), b.resize(product, word)
    n = b.shift_right(high, bits - 2)
    coarse = b.float_of(((high & ((1 << (bits - 2)) - 1)) - (1 << (bits - 3))) >> left, size.element)
    fine = b.float_of(b.funnel(high, low, bits - left) ^ (1 << (bits - 1)), size.element)
    unit = 2.0 ** -(precision + 1)
    r = b.mad(coarse, form.pi[1] / 2 * unit, fine * (form.pi[0] / 2 * unit * 2.0**-bits))
    r = b.mad(coarse, form.pi[0] / 2 * unit, r)
    return b.select(size < math.inf, r, math.nan), n


def _sin_of(b: Builder, r: Value, n: Value) -> Value:
    """sin(r + n pi/2)."""
    sine, cosine = sin_cos(b, r)
    y = b.select((n & 1).differs(0), cosine, sine)
    return b.from_bits(b.bits(y) ^ ((n & 2) << (_TOP[r.element] - 1)))


def _tan_of(b: Builder, r: Value, n: Value) -> Value:
    """tan(r + n pi/2)."""
    t = odd(b, r, "tan")
    turned = (n & 1).differs(0)
    return b.select(turned, -1.0, t) / b.select(turned, t, 1.0)


def _with_sign(b: Builder, y: Value, x: Value) -> Value:
    """y, negated where x is negative."""
    return b.from_bits(b.bits(y) ^ (b.bits(x) & (1 << _TOP[x.element])))


def sin_by_quarters(b: Builder, x: Value) -> Value:
    """Sine by quarter turns."""
    return _with_sign(b, _sin_of(b, *_reduce(b, x)), x)


def cos_by_quarters(b: Builder, x: Value) -> Value:
    """Cosine by quarter turns: sin(x + pi/2)."""
    r, n = _reduce(b, x)
    return _sin_of(b, r, n + 1)


def sin_and_cos(b: Builder, x: Value) -> tuple[Value, Value]:
    """Sine and cosine by quarter turns: callers of both share the reduction and the polynomials."""
    r, n = _reduce(b, x)
    return _with_sign(b, _sin_of(b, r, n), x), _sin_of(b, r, n + 1)


def _sin_by_halves(b: Builder, x: Value, k: Value, sign: Value) -> Value:
    """sin(x - k pi) for |x - k pi| <= pi/2 + 0.013, with its sign bit changed by that of `sign`.

    Operations next to the result are fused on every processor: a further rounding would take it beyond 1. Products of
    k = 0 with the parts of pi are -0, so that x = -0 keeps its sign.
    """
    r, (cubic, *rest) = x, COEFFICIENTS["sin_half", "f32"]
    for part in FORMATS[x.element].pi_below:
        r = b.fma(k, -part, r)
    z = r * r
    y = b.fma(b.fma(z * z, b.poly(z, rest), z * cubic), r, r)
    return b.from_bits(b.bits(y) ^ sign)


def sin(b: Builder, x: Value) -> Value:
    """Sine."""
    if x.element == "double":
        return sin_by_quarters(b, x)
    k, n = b.round_scaled(x, 1 / math.pi)
    y = _sin_by_halves(b, x, k, n << _TOP[x.element])
    return b.rarely_above(b.abs(x), LIMITS[x.element], "sin_by_quarters", [y], x)[0]


def cos(b: Builder, x: Value) -> Value:
    """Cosine: (-1)**k sin((k + 1/2) pi - |x|), where k is the whole part of |x| / pi.

    Below 2**17 the last bit of a sum with 2**16 is worth 2**-7, so that k ends in bit 7 and 1/2 is bit 6.
    """
    if x.element == "double":
        return cos_by_quarters(b, x)
    size = b.abs(x)
    whole = b.bits(b.fma(size, 1 / math.pi, 2.0**16)) & -(1 << 7)
    k = 2.0**16 - b.from_bits(whole | 1 << 6)
    y = _sin_by_halves(b, -size, k, whole << (_TOP[x.element] - 7))
    return b.rarely_above(size, LIMITS[x.element], "cos_by_quarters", [y], x)[0]


def tan(b: Builder, x: Value) -> Value:
    """Tangent."""
    return _with_sign(b, _tan_of(b, *_reduce(b, x)), x)
