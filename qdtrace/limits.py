"""Limits of arrays of integers that bound loops."""

from __future__ import annotations

import numpy as np

from qdtrace.frozen import frozen


@frozen(slots=True)
class Limits:
    """Limits of the elements of an array of integers."""

    low: int
    """No element is less."""
    high: int
    """No element is greater."""
    steps: tuple[int, ...]
    """The most by which an element is greater than the one before it, along each axis; the first follows the last."""


def limits_in(array: np.ndarray) -> Limits:
    """Returns the limits of an array of integers, rounded to powers of two."""
    if not array.size:
        return Limits(0, 0, (0,) * array.ndim)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    low, high = int(array.min()), int(array.max())
    steps = tuple(_largest_step(array, axis, high - low) for axis in range(array.ndim))
    least, most = np.iinfo(array.dtype).min, np.iinfo(array.dtype).max
    # an end of the dtype would say nothing (`analysis/index/most_trips`)
    return Limits(
        low if low == least else max(-_rounded(-low), least + 1 if least else 0),
        high if high == most else min(_rounded(high), most - 1),
        steps,
    )


def _largest_step(array: np.ndarray, axis: int, span: int) -> int:
    bits = 8 * array.dtype.itemsize
    if span >= 1 << (bits - 1):  # differences may not be numbers of the dtype
        if bits == 64:
            return _rounded(span)
        return _largest_step(array.astype(np.int64), axis, span)
    signed = array.view(f"i{array.dtype.itemsize}")
    return _rounded(int(np.diff(signed, axis=axis, prepend=np.take(signed, [-1], axis)).max()))


def _rounded(value: int) -> int:
    """Returns the least power of two that is not less than a positive number, and 0 for all others."""
    return 1 << (value - 1).bit_length() if value > 0 else 0
