"""Compares results of two runs of one program.

The policy: integers and bools are equal. Floats are equal to the bit, but any NaN equals any NaN, unless a tolerance
is given. A tolerance has `ulps`, a distance counted in representable values (infinity is next to the largest one; for
the result of a function that both sides may round), and `absolute`, a plain distance (for sums taken in two orders: the
generator bounds each summand, see `programs.SUMS`). `signed_zeros=False` makes the two zeros equal.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qdtrace.ir.types import DType


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two floats may be apart: within `ulps`, or within `absolute`."""

    ulps: int = 0
    absolute: float = 0.0
    signed_zeros: bool = True


EXACT = Tolerance()


def compare(got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: Tolerance = EXACT) -> None:
    """Raises AssertionError that names the result, the index and both values of the first difference."""
    assert len(got) == len(want), f"{len(got)} results, not {len(want)}"
    for position, (a, b) in enumerate(zip(map(np.asarray, got), map(np.asarray, want), strict=True)):
        where = f"result {position}"
        assert (a.dtype, a.shape) == (b.dtype, b.shape), f"{where}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}"
        different = np.flatnonzero(~agreeing(a.ravel(), b.ravel(), tolerance))
        if different.size:
            flat = different[0]
            index = tuple(int(i) for i in np.unravel_index(flat, a.shape))
            apart = f"{different.size} of {a.size} differ"
            raise AssertionError(f"{where} at {index}: {a.ravel()[flat]!r}, not {b.ravel()[flat]!r} ({apart})")


def agreeing(a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """Which elements of two flat arrays of one dtype agree."""
    if not DType.of(a.dtype).is_float:
        return a == b
    bits = np.dtype(f"i{a.dtype.itemsize}")
    both_nan = np.isnan(a) & np.isnan(b)
    either_nan = np.isnan(a) | np.isnan(b)
    agree = a.view(bits) == b.view(bits)
    if not tolerance.signed_zeros:
        agree |= (a == 0) & (b == 0)
    if tolerance.ulps:
        agree |= ~either_nan & (distance(a, b) <= tolerance.ulps) & ((a != 0) | (b != 0) | (not tolerance.signed_zeros))
    if tolerance.absolute:
        with np.errstate(all="ignore"):
            agree |= np.abs(a.astype(np.float64) - b.astype(np.float64)) <= tolerance.absolute
    return agree | both_nan


def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Representable values between two floats, as a float."""
    return np.abs(_rank(a) - _rank(b))


def _rank(a: np.ndarray) -> np.ndarray:
    """The number of a float among those of its type, counted from zero."""
    unsigned = a.view(np.dtype(f"u{a.dtype.itemsize}"))
    top = np.array(1 << (8 * a.dtype.itemsize - 1), unsigned.dtype)
    magnitude = (unsigned & ~top).astype(np.longdouble)  # exact: the type has 64 bits of mantissa
    return np.where(unsigned & top, -magnitude, magnitude)
