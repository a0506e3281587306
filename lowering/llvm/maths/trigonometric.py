"""sin, cos and tan for every finite argument.

|x| = n pi + r with |r| <= pi/2 (cos: half-integers n; tan: n pi/2), then one odd polynomial in r. Up to a limit, r is
made from pi in three parts with fused multiply-adds: the first difference is exact because both terms are multiples of
the last bit of pi's first part. Beyond it the fraction of x * 2/pi is taken from 192 bits of 2/pi that begin where the
product is below 4 (M. H. Payne and R. N. Hanek, Radian reduction for trigonometric functions, 1983), lane by lane in a
cold function.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.coefficients import TWO_OVER_PI, TWO_OVER_PI_BITS
from lowering.llvm.maths.formats import FORMATS
from lowering.llvm.maths.inverse import odd

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value

LIMITS = {"float": 1e5, "double": 2.0**28}
"""Largest |x| whose reduction by pi in three parts is accurate to the last bit."""
TABLE = "two_over_pi"
_TABLE_BYTES = 168


def table_text(symbol: str) -> str:
    """The global constant with the bits of 2/pi, least significant byte first (little-endian processors)."""
    content = "".join(f"\\{byte:02X}" for byte in TWO_OVER_PI.to_bytes(_TABLE_BYTES, "little"))
    return f'@{symbol} = internal unnamed_addr constant [{_TABLE_BYTES} x i8] c"{content}"\n'


def _reduce(b: Builder, size: Value, whole: Value, share: float) -> Value:
    """size - whole * share * pi."""
    for part in FORMATS[size.element].pi:
        size = b.fma(whole, -part * share, size)
    return size


def _with_sign(b: Builder, y: Value, n: Value | None, x: Value | None) -> Value:
    """y with its sign turned where n is odd and where x is negative."""
    top = 8 * (4 if y.element == "float" else 8) - 1
    bits = b.bits(y)
    if n is not None:
        bits = bits ^ (n << top)
    if x is not None:
        bits = bits ^ (b.bits(x) & (1 << top))
    return b.from_bits(bits)


def sin(b: Builder, x: Value) -> Value:
    """Sine."""
    size = b.abs(x)
    whole, n = b.round_scaled(size, 1 / math.pi)
    result = _with_sign(b, odd(b, _reduce(b, size, whole, 1.0), "sin"), n, x)
    return b.rarely(size > LIMITS[x.element], "sin_patch", result, x)


def cos(b: Builder, x: Value) -> Value:
    """Cosine: sin(x + pi/2)."""
    size = b.abs(x)
    whole, n = b.round_scaled(b.fma(size, 1 / math.pi, 0.5), 1.0)
    result = _with_sign(b, odd(b, _reduce(b, size, whole - 0.5, 1.0), "sin"), n, None)
    return b.rarely(size > LIMITS[x.element], "cos_patch", result, x)


def _tan_of(b: Builder, r: Value, n: Value) -> Value:
    """tan(r + n pi/2)."""
    t = odd(b, r, "tan")
    turned = (n & 1).differs(0)
    return b.select(turned, -1.0, t) / b.select(turned, t, 1.0)


def tan(b: Builder, x: Value) -> Value:
    """Tangent."""
    size = b.abs(x)
    whole, n = b.round_scaled(size, 2 / math.pi)
    result = _with_sign(b, _tan_of(b, _reduce(b, size, whole, 0.5), n), None, x)
    return b.rarely(size > LIMITS[x.element], "tan_patch", result, x)


def _quarter_turns(b: Builder, x: Value) -> tuple[Value, Value]:
    """|x| * 2/pi modulo 4 as 128 bits, two before the binary point: (high, low) i64; scalar f64 only."""
    bits = b.bits(b.abs(x))
    exponent = (bits >> 52) - 1075
    significand = (bits & ((1 << 52) - 1)) | (1 << 52)
    skipped = TWO_OVER_PI_BITS - 190 - exponent
    place = b.emit(f"getelementptr i8, ptr @{b.need(TABLE)}, i64 {(skipped >> 3).text}", "i64")
    window = b.emit(f"load i256, ptr {place.text}, align 1", "i256")
    in_byte = b.emit(f"zext i64 {(skipped & 7).text} to i256", "i256")
    factor = b.emit(f"zext i64 {significand.text} to i192", "i192")
    # A product of wide integers wraps: whole turns fall off at the top.
    product = b.resize(b.shift_right(window, in_byte), "i192")
    product = b.emit(f"mul i192 {product.text}, {factor.text}", "i192")
    return b.resize(b.shift_right(product, 128), "i64"), b.resize(b.shift_right(product, 64), "i64")


def _angle(b: Builder, high: Value, low: Value, unit: float) -> Value:
    """(high, low), taken as a signed fraction, times unit."""
    rest = b.float_of(b.shift_right(low, 1), "double") * 2.0**-63
    return (b.float_of(high, "double") + rest) * unit


def _sin_huge(b: Builder, x: Value, shift: int) -> tuple[Value, Value]:
    high, low = _quarter_turns(b, x)
    high = high + shift
    n = b.shift_right(high + (1 << 62), 63)
    return odd(b, _angle(b, high - (n << 63), low, math.pi * 2.0**-63), "sin"), n


def sin_huge(b: Builder, x: Value) -> Value:
    """Sine of a scalar f64 of at least 2**16; NaN for inf."""
    y, n = _sin_huge(b, x, 0)
    return b.select(b.abs(x) < math.inf, _with_sign(b, y, n, x), math.nan)


def cos_huge(b: Builder, x: Value) -> Value:
    """Cosine of a scalar f64 of at least 2**16; NaN for inf."""
    y, n = _sin_huge(b, x, 1 << 62)
    return b.select(b.abs(x) < math.inf, _with_sign(b, y, n, None), math.nan)


def tan_huge(b: Builder, x: Value) -> Value:
    """Tangent of a scalar f64 of at least 2**16; NaN for inf."""
    high, low = _quarter_turns(b, x)
    n = b.shift_right(high + (1 << 61), 62)
    t = _tan_of(b, _angle(b, high - (n << 62), low, math.pi * 2.0**-63), n)
    return b.select(b.abs(x) < math.inf, _with_sign(b, t, None, x), math.nan)


def patch(b: Builder, x: Value, quick: Value, name: str) -> Value:
    """`quick` with the lanes of large arguments replaced by `name`(x)."""
    if b.lanes == 1:
        return b.resize(b.call(name, b.resize(x, "double")), x.element)
    return b.each_lane(b.abs(x) > LIMITS[x.element], name, x, quick)
