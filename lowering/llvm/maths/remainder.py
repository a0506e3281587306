"""rem: C's fmod, exact.

A quotient below 2**mantissa is truncated from the rounded division, at most one off; the remainder by fused
multiply-add is then exact, and so is its correction. Larger quotients are taken a mantissa at a time in a cold loop.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lowering.llvm.maths.formats import FORMATS

if TYPE_CHECKING:
    from lowering.llvm.maths.builder import Builder, Value


def _step(b: Builder, r: Value, d: Value) -> Value:
    """r minus the multiple of d next below it."""
    r = b.fma(-b.trunc(r / d), d, r)
    r = b.select(r < 0.0, r + d, r)
    return b.select(r >= d, r - d, r)


def rem(b: Builder, x: Value, y: Value) -> Value:
    """x - y trunc(x / y), with the sign of x; NaN for an infinite x or a zero y."""
    form = FORMATS[x.element]
    size, divisor = b.abs(x), b.abs(y)
    large = ~(size / divisor < 2.0**form.mantissa) & (size < math.inf) & (divisor > 0.0)
    quick = _step(b, size, divisor)
    (result,) = b.rarely(large, "rem_patch", [quick], size, divisor, quick)
    result = b.select(divisor.equals(math.inf), size, result)
    # The rest comes as NaN by itself: inf minus inf, or 0/0.
    return b.copysign(b.select(size < math.inf, result, math.nan), x)


def _exponent(b: Builder, x: Value) -> Value:
    """floor(log2(x)) plus a constant, for x > 0, subnormal or not."""
    form = FORMATS[x.element]
    small, lift = x < form.smallest, form.mantissa + 2
    raw = b.bits(b.select(small, x * 2.0**lift, x)) >> form.mantissa
    return b.select(small, raw - lift, raw)


def patch(b: Builder, size: Value, divisor: Value, quick: Value) -> Value:
    """The remainder of finite size by divisor > 0 for any quotient; `quick` in other lanes."""
    form = FORMATS[size.element]
    valid = (size < math.inf) & (divisor > 0.0) & (divisor < math.inf)
    d = b.select(valid, divisor, 1.0)
    exponent = _exponent(b, d)

    def step(r: Value) -> Value:
        shift = _exponent(b, r) - exponent - (form.mantissa - 1)
        return _step(b, r, b.ldexp(d, b.select(shift > 0, shift, 0)))

    return b.select(valid, b.repeat(b.select(valid, size, 0.0), lambda r: r >= d, step), quick)
