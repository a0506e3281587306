"""sin, cos and tan for every finite argument.

|x| = n pi/2 + r with |r| <= pi/4, then the sine or cosine polynomial of r, whichever n asks for. Up to a limit, r is
made from pi in three parts with fused multiply-adds: the first difference is exact because both terms are multiples of
the last bit of pi's first part. Beyond it the fraction of x * 2/pi is taken from 192 bits of 2/pi that begin where the
product is below 4 (M. H. Payne and R. N. Hanek, Radian reduction for trigonometric functions, 1983), lane by lane in a
cold function.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import COEFFICIENTS, TWO_OVER_PI, TWO_OVER_PI_BITS
from lowering.llvm.maths.formats import FORMATS
from lowering.llvm.maths.inverse import odd

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

LIMITS = {"float": 1e5, "double": 2.0**28}
"""Largest |x| whose reduction by pi in three parts is accurate to the last bit."""
_TOP = {"float": 31, "double": 63}
"""The sign's bit."""
TABLE = "two_over_pi"
_TABLE_BYTES = 168


def table_text(symbol: str) -> str:
    """The global constant with the bits of 2/pi, least significant byte first (little-endian processors)."""
    content = "".join(f"\\{byte:02X}" for byte in TWO_OVER_PI.to_bytes(_TABLE_BYTES, "little"))
    return f'@{symbol} = internal unnamed_addr constant [{_TABLE_BYTES} x i8] c"{content}"\n'


def sin_cos(b: Builder, r: Value) -> tuple[Value, Value]:
    """Sine and cosine of |r| <= pi/4."""
    z = r * r
    cosine = b.mad(z * z, b.poly(z, COEFFICIENTS["cos", FORMATS[r.element].name]), b.mad(z, -0.5, 1.0))
    return odd(b, r, "sin"), cosine


def _reduce(b: Builder, size: Value) -> tuple[Value, Value]:
    """(r, n) with size = n pi/2 + r."""
    whole, n = b.round_scaled(size, 2 / math.pi)
    for part in FORMATS[size.element].pi:
        size = b.fma(whole, -part / 2, size)
    return size, n


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


def sin(b: Builder, x: Value) -> Value:
    """Sine."""
    size = b.abs(x)
    result = _with_sign(b, _sin_of(b, *_reduce(b, size)), x)
    return b.rarely(size > LIMITS[x.element], "sin_patch", result, x)


def cos(b: Builder, x: Value) -> Value:
    """Cosine: sin(x + pi/2)."""
    size = b.abs(x)
    r, n = _reduce(b, size)
    return b.rarely(size > LIMITS[x.element], "cos_patch", _sin_of(b, r, n + 1), x)


def tan(b: Builder, x: Value) -> Value:
    """Tangent."""
    size = b.abs(x)
    result = _with_sign(b, _tan_of(b, *_reduce(b, size)), x)
    return b.rarely(size > LIMITS[x.element], "tan_patch", result, x)


def _reduce_huge(b: Builder, x: Value) -> tuple[Value, Value]:
    """(r, n) with |x| = n pi/2 + r for a finite scalar f64 of at least 2**16; n modulo 4."""
    bits = b.bits(b.abs(x))
    exponent = (bits >> 52) - 1075
    significand = (bits & ((1 << 52) - 1)) | (1 << 52)
    skipped = TWO_OVER_PI_BITS - 190 - exponent
    place = b.emit(f"getelementptr i8, ptr @{b.need(TABLE)}, i64 {(skipped >> 3).text}", "i64")
    window = b.emit(f"load i256, ptr {place.text}, align 1", "i256")
    in_byte = b.emit(f"zext i64 {(skipped & 7).text} to i256", "i256")
    factor = b.emit(f"zext i64 {significand.text} to i192", "i192")
    # |x| * 2/pi with two bits before the binary point: whole turns fall off at the top of the wrapping product.
    product = b.resize(b.shift_right(window, in_byte), "i192")
    product = b.emit(f"mul i192 {product.text}, {factor.text}", "i192")
    high, low = (b.resize(b.shift_right(product, count), "i64") for count in (128, 64))
    n = b.shift_right(high + (1 << 61), 62)
    fraction = b.float_of(high - (n << 62), "double") + b.float_of(b.shift_right(low, 1), "double") * 2.0**-63
    return fraction * (math.pi * 2.0**-63), n


def _finite(b: Builder, x: Value, y: Value) -> Value:
    """y where x is finite, else NaN."""
    return b.select(b.abs(x) < math.inf, y, math.nan)


def sin_huge(b: Builder, x: Value) -> Value:
    """Sine of a scalar f64 of at least 2**16."""
    return _finite(b, x, _with_sign(b, _sin_of(b, *_reduce_huge(b, x)), x))


def cos_huge(b: Builder, x: Value) -> Value:
    """Cosine of a scalar f64 of at least 2**16."""
    r, n = _reduce_huge(b, x)
    return _finite(b, x, _sin_of(b, r, n + 1))


def tan_huge(b: Builder, x: Value) -> Value:
    """Tangent of a scalar f64 of at least 2**16."""
    return _finite(b, x, _with_sign(b, _tan_of(b, *_reduce_huge(b, x)), x))


def patch(b: Builder, x: Value, quick: Value, name: str) -> Value:
    """`quick` with the lanes of large arguments replaced by `name`(x)."""
    if b.lanes == 1:
        return b.resize(b.call(name, b.resize(x, "double")), x.element)
    return b.each_lane(b.abs(x) > LIMITS[x.element], name, x, quick)
