"""Products of all factors but one, as numbers near 1 and exponents of 2.

The others' product is the whole one divided by a factor. Neither is zero or infinite before the result is: the numbers,
between 0.7 and 1.4, are multiplied in f64, their exponents are added. That holds for 2000 factors whose numbers are all
on one side of 1, and for many more of those that are met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.ir.builder import Builder
    from qdtrace.ir.program import Atom

F64, I64 = DType.f64, DType.i64
_FRACTION = 52
"""Bits of a number's fraction."""
_BIAS = 1023
"""Exponents are stored with this number added."""
_FIELD = 2 * _BIAS + 1
"""The largest exponent, that of infinity, as it is stored."""
_TINY, _LIFT = 2.0**-1000, 100
"""Numbers below the first are multiplied by 2 to the second, as subnormal ones have no exponent."""
_MOST = 4000
"""Bound on exponents of a result: beyond, it is zero or infinite."""


def split(b: Builder, value: Atom) -> tuple[Atom, Atom]:
    """Returns a number and an exponent; of zero, infinity and NaN the value itself and 0."""
    zero, one = literal(0, I64), literal(1, I64)
    wide = b.convert(value, F64)
    is_tiny = b("lt", b("abs", wide), literal(_TINY, F64))
    lifted = b("select", is_tiny, b("mul", wide, literal(2.0**_LIFT, F64)), wide)
    bits = b("bitcast", lifted, dtype=I64)
    field = b("and", b("shift_right_logical", bits, literal(_FRACTION, I64)), literal(_FIELD, I64))
    fraction = b("and", bits, literal(~(_FIELD << _FRACTION), I64))
    number = b("bitcast", b("or", fraction, literal(_BIAS << _FRACTION, I64)), dtype=F64)
    is_above = b("gt", b("abs", number), literal(2.0**0.5, F64))
    number = b("select", is_above, b("mul", number, literal(0.5, F64)), number)
    exponent = b("add", b("sub", field, literal(_BIAS, I64)), b("select", is_above, one, zero))
    exponent = b("sub", exponent, b("select", is_tiny, literal(_LIFT, I64), zero))
    is_split = b("and", b("is_finite", wide), b("ne", wide, literal(0, F64)))
    return b("select", is_split, number, wide), b("select", is_split, exponent, zero)


def joined(b: Builder, number: Atom, exponent: Atom, dtype: DType) -> Atom:
    """Returns the number times 2 to the exponent, rounded to a dtype."""
    exponent = b("min", b("max", exponent, literal(-_MOST, I64)), literal(_MOST, I64))
    quarter = b("div", exponent, literal(4, I64))  # a power of two may be too large where the result is not
    rest = b("sub", exponent, b("mul", quarter, literal(3, I64)))
    for part in (quarter, quarter, quarter, rest):
        power = b("shift_left", b("add", part, literal(_BIAS, I64)), literal(_FRACTION, I64))
        number = b("mul", number, b("bitcast", power, dtype=F64))
    return b.convert(number, dtype)
