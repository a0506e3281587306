"""The derivative of digamma, as equations: digamma is a primitive, its derivative is not.

Reflection brings the argument above one half, the recurrence above `_STEPS`, where the asymptotic series with Bernoulli
numbers converges (Abramowitz and Stegun, 6.4.6, 6.4.7 and 6.4.12).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom

_STEPS = {DType.f64: 12}
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)


def trigamma(b: Builder, x: Atom) -> Atom:
    """The second derivative of the logarithm of the gamma function; infinite at 0, -1, -2, ..."""

    def number(value: float) -> Atom:
        return literal(value, x.dtype)

    reflected = b("lt", x, number(0.5))
    y: Atom = b("select", reflected, b("sub", number(1), x), x)
    total: Atom = number(0)
    for _ in range(_STEPS.get(x.dtype, 6)):
        total = b("add", total, b("div", number(1), b("mul", y, y)))
        y = b("add", y, number(1))
    inverse = b("div", number(1), y)
    square = b("mul", inverse, inverse)
    series: Atom = number(_BERNOULLI[-1])
    for term in reversed(_BERNOULLI[:-1]):
        series = b("add", b("mul", series, square), number(term))
    series = b("add", b("mul", b("mul", series, square), inverse), b("mul", square, number(0.5)))
    above = b("add", total, b("add", series, inverse))
    # The fraction alone goes into the sine: pi times a large number has no digits left.
    fraction = b("sub", x, b("round_even", x))
    sine = b("sin", b("mul", fraction, number(math.pi)))
    below = b("sub", b("div", number(math.pi**2), b("mul", sine, sine)), above)
    return b("select", reflected, below, above)
