"""Facts about the two formats, and constants split into parts that fit them."""

from __future__ import annotations

import math

import numpy as np

from qdtrace.frozen import frozen


@frozen(slots=True)
class Format:
    """One floating-point format of LLVM."""

    name: str
    mantissa: int
    """Stored bits of the significand."""
    bias: int
    smallest: float
    """Smallest normal number."""
    rounding: float
    """1 + x is 1 below this, and x + O(x**2) is x."""
    integer: str
    ln2: tuple[float, ...]
    """ln 2 in two parts of full precision."""
    ln2_short: tuple[float, ...]
    """ln 2 in two parts, the first with 12 bits to spare: exponents times it are exact."""
    pi: tuple[float, ...]
    """Pi in three parts of full precision: their sum is good for 3 * (mantissa + 1) bits."""
    pi_below: tuple[float, ...]
    """The same with positive parts: each is the largest number that is not above what is left."""
    sqrt_half: int
    """Bits of the largest format number below sqrt(1/2)."""


# Digits enough for three parts of f64; the parts are exact by construction.
_DIGITS = {
    "pi": "3.14159265358979323846264338327950288419716939937510582097494459230781640628620899",
    "ln2": "0.69314718055994530941723212145817656807550013436025525412068000949339362196969472",
}


def split(name: str, kind: type[np.floating], parts: int, spare: int = 0, *, below: bool = False) -> tuple[float, ...]:
    """Splits a constant into a sum of numbers of a format, largest first; the first ends in `spare` zero bits.

    No part is above what is left if they are `below` it.
    """
    digits = _DIGITS[name].replace(".", "")
    numerator, denominator = int(digits), 10 ** (len(digits) - 1)
    result: list[float] = []
    for k in range(parts):
        part = float(kind(numerator / denominator))
        if k == 0 and spare:
            scale = 2.0 ** (np.finfo(kind).nmant - spare)
            part = math.floor(part * scale) / scale
        over, under = part.as_integer_ratio()
        if below and over * denominator > numerator * under:
            part = float(np.nextafter(kind(part), kind(0)))
            over, under = part.as_integer_ratio()
        result.append(part)
        numerator, denominator = numerator * under - over * denominator, denominator * under
    return tuple(result)


def _format(name: str, kind: type[np.floating], sqrt_half: int) -> Format:
    info = np.finfo(kind)
    return Format(
        name, info.nmant, info.maxexp - 1, float(info.smallest_normal), 2.0 ** -(info.nmant + 3), f"i{info.bits}",
        split("ln2", kind, 2), split("ln2", kind, 2, 12), split("pi", kind, 3),
        split("pi", kind, 3, below=True), sqrt_half,
    )  # fmt: skip


FORMATS = {"float": _format("f32", np.float32, 0x3F3504F3), "double": _format("f64", np.float64, 0x3FE6A09E667F3BCC)}
