"""Boxes of integers: on each axis an arithmetic progression, and how many elements lie in any of several boxes."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, lcm, prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

CELLS = 1 << 16
"""Cells of the grid on which boxes are joined, at most; above it the boxes are added."""


@dataclass(frozen=True, slots=True)
class Span:
    """`start, start + step, ...`, `count` of them; the step of a single one is 1."""

    start: int
    step: int
    count: int

    def clipped(self, size: int) -> Span:
        """The part inside `0 .. size - 1`: elsewhere is no element."""
        first = max(0, -(self.start // self.step))
        last = min(self.count - 1, (size - 1 - self.start) // self.step)
        count = max(0, last - first + 1)
        return Span(self.start + first * self.step, self.step if count > 1 else 1, count)


def progression(digits: Sequence[tuple[int, int]], constant: int) -> tuple[Span, bool]:
    """The values of `constant + sum(c * d)` with each d in `0 .. n - 1`, and whether the span is exactly them."""
    start, step, count, exact = constant, 1, 1, True
    for c, n in sorted(digits, key=lambda d: abs(d[0])):
        if c < 0:
            start += c * (n - 1)
        c = abs(c)
        if count == 1:
            step, count = c, n
            continue
        exact &= c % step == 0 and c // step <= count
        common = gcd(step, c)
        count = ((count - 1) * step + c * (n - 1)) // common + 1
        step = common
    return Span(start, step if count > 1 else 1, count), exact


def distinct_values(digits: Sequence[tuple[int, int]]) -> int | None:
    """How many values `sum(c * d)` has, where that is a progression or no two are equal; else None."""
    span, exact = progression(digits, 0)
    if exact:
        return span.count
    reach = 0
    for c, n in sorted((abs(c), n) for c, n in digits):
        if c <= reach:
            return None
        reach += c * (n - 1)
    return prod(n for _, n in digits)


def union_size(boxes: Sequence[tuple[Span, ...]]) -> int | None:
    """How many elements lie in any of the boxes; None where that is too much work."""
    boxes = [b for b in dict.fromkeys(boxes) if all(s.count for s in b)]
    if len(boxes) < 2:
        return prod(s.count for s in boxes[0]) if boxes else 0
    # With one step L an axis, element p is number p // L of the residue class p % L.
    steps = [lcm(*(s.step for s in axis if s.count > 1)) for axis in zip(*boxes, strict=True)]
    parts: dict[tuple[int, ...], list[tuple[tuple[int, int], ...]]] = {}
    for box in boxes:
        pieces: list[tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = [((), ())]
        for span, step in zip(box, steps, strict=True):
            mine = _classes(span, step)
            if len(pieces) * len(mine) > 64:
                return None
            pieces = [((*r, residue), (*i, interval)) for r, i in pieces for residue, interval in mine]
        for residues, intervals in pieces:
            parts.setdefault(residues, []).append(intervals)
    total = 0
    for part in parts.values():
        volume = _volume(part)
        if volume is None:
            return None
        total += volume
    return total


def _classes(span: Span, step: int) -> list[tuple[int, tuple[int, int]]]:
    """The residue classes modulo `step` of a span, each with the interval (first, end) of its elements."""
    if span.count == 1:
        return [(span.start % step, (span.start // step, span.start // step + 1))]
    found: list[tuple[int, tuple[int, int]]] = []
    kinds = step // span.step
    for k in range(min(kinds, span.count, 65)):
        first = span.start + k * span.step
        count = (span.count - k + kinds - 1) // kinds
        found.append((first % step, (first // step, first // step + count)))
    return found


def _volume(boxes: list[tuple[tuple[int, int], ...]]) -> int | None:
    """Cells in the union of boxes of intervals: on the grid of all their ends."""
    axes = [sorted({end for interval in axis for end in interval}) for axis in zip(*boxes, strict=True)]
    if len(axes) == 1:
        return _length([box[0] for box in boxes])
    if prod(len(a) for a in axes) > CELLS or prod(len(a) for a in axes) * len(boxes) > CELLS * 64:
        return None
    filled = np.zeros([len(a) - 1 for a in axes], np.bool_)
    places = [{end: n for n, end in enumerate(a)} for a in axes]
    for box in boxes:
        filled[tuple(slice(at[low], at[high]) for at, (low, high) in zip(places, box, strict=True))] = True
    sizes = [np.diff(np.array(a, np.int64)) for a in axes]
    volume = filled.astype(np.int64)
    for widths in reversed(sizes):
        volume = volume @ widths
    return int(volume)


def _length(intervals: list[tuple[int, int]]) -> int:
    total, end = 0, -(1 << 62)
    for low, high in sorted(intervals):
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total
