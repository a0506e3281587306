"""Coefficients of the maths library, constant term first, as `python -m tests.maths.remez` wrote them.

`coefficients.txt` has a line for each polynomial: name, precision of the result, largest weighted error, coefficients.
Its last line has the bits of 2/pi.
"""

from __future__ import annotations

from importlib.resources import files

*_POLYNOMIALS, (_, _BITS) = (
    line.split() for line in files("lowering.llvm.maths").joinpath("coefficients.txt").read_text().splitlines()
)

COEFFICIENTS: dict[tuple[str, str], tuple[float, ...]] = {
    (name, precision): tuple(map(float, numbers)) for name, precision, _, *numbers in _POLYNOMIALS
}
TWO_OVER_PI_BITS = 1200
TWO_OVER_PI = int(_BITS, 16)
"""floor(2 / pi * 2**1200)."""
