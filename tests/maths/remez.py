"""Minimax polynomials of the maths library: `python -m tests.maths.remez` writes their table, `coefficients.txt`.

Each `Fit` is a smooth function on an interval, a weight that turns its error into the relative error of the final
result, and a degree. The exchange algorithm of E. Ya. Remez runs on a fine Chebyshev grid with 60 digits (mpmath, a
test dependency); the coefficients are then rounded to the type that evaluates them. The printed error is the weighted
maximum before that rounding. Only this script needs mpmath; it runs for some seconds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mpmath
import numpy as np

from lowering.llvm.maths import coefficients as table

Number = Any
"""An mpmath real; its own types do not tell reals from complex numbers."""
Function = Callable[[Number], Number]

mp: Any = mpmath  # which has no types
DIGITS = 60
_TINY = mp.mpf(10) ** -20
"""Stands for 0 where the formula is 0/0 there."""


@dataclass(frozen=True)
class Fit:
    """A polynomial to be found: name, precision of the result, precision of the coefficients, and the problem."""

    name: str
    precision: str
    function: Function
    weight: Function
    low: Number
    high: Number
    degree: int
    stored: str = ""
    nudges: tuple[int, ...] = ()
    """Units in the last place added to the rounded coefficients: what a search found for a property of all results."""


def _horner(coefficients: list[Number], x: Number) -> Number:
    result = mp.mpf(0)
    for coefficient in reversed(coefficients):
        result = result * x + coefficient
    return result


@mp.workdps(DIGITS)
def minimax(fit: Fit, rounds: int = 12) -> tuple[list[Number], Number]:
    """Coefficients (constant term first) and the largest weighted error."""
    count = 24 * (fit.degree + 2)
    middle, half = (mp.mpf(fit.high) + fit.low) / 2, (mp.mpf(fit.high) - fit.low) / 2
    grid = [middle - half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    values = [fit.function(x) for x in grid]
    weights = [abs(fit.weight(x)) for x in grid]
    size = fit.degree + 2
    chosen = [round((count - 1) * (1 - np.cos(np.pi * k / (size - 1))) / 2) for k in range(size)]
    coefficients: list[Number] = []
    worst = mp.mpf(0)
    for _ in range(rounds):
        matrix = mp.matrix(size, size)
        for row, k in enumerate(chosen):
            for power in range(fit.degree + 1):
                matrix[row, power] = grid[k] ** power
            matrix[row, size - 1] = (-1) ** row / weights[k]
        solution = mp.lu_solve(matrix, mp.matrix([values[k] for k in chosen]))
        coefficients = [solution[k] for k in range(fit.degree + 1)]
        errors = [w * (v - _horner(coefficients, x)) for w, v, x in zip(weights, values, grid, strict=True)]
        worst = max(abs(e) for e in errors)
        if worst <= abs(solution[size - 1]) * mp.mpf("1.0001"):
            break
        chosen = _alternation(errors, size)
    return coefficients, worst


def _alternation(errors: list[Number], size: int) -> list[int]:
    """Returns the extremum of each run of one sign, limited to `size` neighbours with the largest errors."""
    peaks: list[int] = []
    for k, error in enumerate(errors):
        if peaks and (errors[peaks[-1]] > 0) == (error > 0):
            if abs(error) > abs(errors[peaks[-1]]):
                peaks[-1] = k
        else:
            peaks.append(k)
    while len(peaks) > size:
        del peaks[0 if abs(errors[peaks[0]]) < abs(errors[peaks[-1]]) else -1]
    return peaks


def _reciprocal_shift(u: Number, shift: float) -> Number:
    """x of t = (x - shift) / (x + shift)."""
    return shift * (1 + u) / (1 - u)


@mp.workdps(DIGITS)
def fits() -> list[Fit]:
    """Returns all polynomials of the library."""
    return list(_fits())


def _fits() -> Iterable[Fit]:
    root, quarter, half = mp.sqrt(2), mp.pi / 4 + mp.mpf("0.004"), mp.pi / 2 + mp.mpf("0.013")
    log2 = mp.mpf("0.348")
    single, double = "f32", "f64"

    for p, degree in ((single, 4), (double, 9)):
        yield Fit("exp", p, lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.expm1(r), -log2, log2, degree)
    for p, degree in ((single, 5), (double, 10)):
        yield Fit("exp2", p, lambda r: mp.expm1(r * mp.log(2)) / r, lambda r: r / 2**r, -0.501, 0.501, degree)
    yield Fit("exp2_pow", single, lambda r: 2**r, lambda r: 2**-r, -0.501, 0.501, 6, double)

    low, high = 1 / root - 1, root - 1
    yield Fit("log", single, lambda f: (mp.log1p(f) - f + f**2 / 2) / f**3, lambda f: f**3 / mp.log1p(f), low, high, 7)

    def atanh_tail(z: Number) -> Number:
        s = mp.sqrt(z)
        return (2 * mp.atanh(s) / s - 2) / z

    top = ((root - 1) / (root + 1)) ** 2
    yield Fit("log", double, atanh_tail, lambda z: z, _TINY, top, 6)
    for name, degree, stored in (("log2", 9, single), ("log2_pow", 12, double)):
        yield Fit(
            name, single, lambda f: mp.log1p(f) / f / mp.log(2), lambda f: f / mp.log1p(f), low, high, degree, stored
        )

    def atanh_rest(z: Number) -> Number:
        s = mp.sqrt(z)
        return ((mp.atanh(s) / s - 1) / z - mp.mpf(1) / 3) / z

    yield Fit("log_pow", double, atanh_rest, lambda z: z**2, _TINY, top, 6)

    def odd_tail(function: Function) -> tuple[Function, Function]:
        return (lambda z: (function(mp.sqrt(z)) / mp.sqrt(z) - 1) / z, lambda z: z * mp.sqrt(z) / function(mp.sqrt(z)))

    for name, function, top, degrees in (
        ("sin", mp.sin, quarter**2, (2, 5)),
        ("tan", mp.tan, quarter**2, (6, 13)),
        ("asin", mp.asin, mp.mpf("0.2501"), (4, 11)),
    ):
        for p, degree in zip((single, double), degrees, strict=True):
            yield Fit(name, p, *odd_tail(function), _TINY, top, degree)
    yield Fit("sin_half", single, *odd_tail(mp.sin), _TINY, half**2, 3, nudges=(-2, -12, 16, 582))
    for p, degree in ((single, 2), (double, 5)):
        yield Fit(
            "cos", p, lambda z: (mp.cos(mp.sqrt(z)) - 1 + z / 2) / z**2, lambda z: z**2, _TINY, quarter**2, degree
        )
    yield Fit("atan", single, *odd_tail(mp.atan), _TINY, 1.0, 7)
    yield Fit("atan", double, *odd_tail(mp.atan), _TINY, (root - 1) ** 2 + mp.mpf("0.0001"), 10)

    for p, degree in ((single, 6), (double, 11)):
        yield Fit(
            "erf", p, lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)),
            _TINY, mp.mpf(1), degree,
        )  # fmt: skip
    yield Fit("erf_tail", single, lambda x: -mp.log(mp.erfc(x), 2), mp.erfc, mp.mpf(1), mp.mpf("4.1"), 6)
    for p, degree, end in ((single, 9, 10.5), (double, 21, 28)):
        shift = 3.0

        def scaled(t: Number, shift: float = shift) -> Number:
            x = _reciprocal_shift(t, shift)
            return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)

        low, high = ((mp.mpf(x) - shift) / (x + shift) for x in (0.5, end))
        yield Fit("erfcx", p, scaled, lambda t: mp.mpf(1), low, high, degree)

    def one(_: Number) -> Number:
        return mp.mpf(1)

    def inverse(w: Number) -> Number:
        x = mp.sqrt(-mp.expm1(-w))
        return mp.erfinv(x) / x

    for p, degrees, end in ((single, (12, 10), 4.1), (double, (7, 9), 6.1)):
        yield Fit("erf_inv", p, lambda u: inverse(u + 3), one, _TINY - 3, mp.mpf("3.3"), degrees[0], double)
        yield Fit("erf_inv_tail", p, lambda u: inverse((u + 4) ** 2), one, -1.55, end - 4, degrees[1], double)

    for p, degree in ((single, 3), (double, 4)):
        yield Fit("cbrt", p, lambda m: 1 / mp.cbrt(m), mp.cbrt, mp.mpf(1), mp.mpf(2), degree)

    def stirling(w: Number) -> Number:
        x = 1 / mp.sqrt(w)
        return (mp.loggamma(x) - (x - 0.5) * mp.log(x) + x - mp.log(2 * mp.pi) / 2) * x

    def digamma_tail(w: Number) -> Number:
        x = 1 / mp.sqrt(w)
        return (mp.digamma(x) - mp.log(x) + 1 / (2 * x)) / w

    zero = mp.findroot(mp.digamma, 1.4616)
    for p, gamma, large, psi, asymptotic in ((single, 10, 2, 10, 3), (double, 20, 6, 22, 8)):
        yield Fit("lgamma", p, lambda d: mp.loggamma(2 + d) / d, one, mp.mpf("-0.721"), mp.mpf("0.5"), gamma, double)
        yield Fit("stirling", p, stirling, one, mp.mpf("1e-12"), mp.mpf(1) / 64, large, double)
        yield Fit("digamma", p, lambda u: mp.digamma(u + 1.5) / (u + 1.5 - zero), one, -0.5001, 0.5001, psi, double)
        yield Fit("digamma_tail", p, digamma_tail, one, mp.mpf("1e-10"), mp.mpf(1) / 36, asymptotic, double)


def rounded(fit: Fit, found: list[Number]) -> list[float]:
    """Returns coefficients in the type that evaluates them."""
    kind, word = (np.float32, np.int32) if (fit.stored or fit.precision) == "f32" else (np.float64, np.int64)
    bits = np.array([float(c) for c in found], kind).view(word)
    bits += np.array(fit.nudges or [0] * len(found), word)
    return [float(c) for c in bits.view(kind)]


def render() -> str:
    """Returns the text of `coefficients.txt`."""
    with mp.workdps(400):
        digits = f"{int(mp.floor(2 / mp.pi * mp.mpf(2) ** table.TWO_OVER_PI_BITS)):x}"
    lines: list[str] = []
    for fit in fits():
        found, worst = minimax(fit)
        numbers = [repr(c) for c in rounded(fit, found)]
        lines.append(" ".join([fit.name, fit.precision, mp.nstr(worst, 2), *numbers]))
        print(fit.name, fit.precision, fit.degree, mp.nstr(worst, 3), flush=True)
    return "\n".join([*lines, f"two_over_pi {digits}", ""])


if __name__ == "__main__":
    Path(table.__file__).with_suffix(".txt").write_text(render())
