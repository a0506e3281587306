"""Boxes of integers: on each axis an arithmetic progression, and how many elements lie in any of several boxes."""

from __future__ import annotations

from math import lcm, prod
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.index.progression import Progression

CELLS = 1 << 16
"""Largest number of cells of the grid on which the union of boxes is counted."""


def union_size(boxes: Sequence[tuple[Progression, ...]]) -> int | None:
    """Returns how many elements lie in any of the boxes, or None if counting them is too much work."""
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


def _classes(span: Progression, step: int) -> list[tuple[int, tuple[int, int]]]:
    """Returns the residue classes modulo `step` of a span, each with the interval (first, end) of its elements."""
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
    """Returns the size of the union of boxes, counted on the grid of all their ends; None if the grid is too large."""
    axes = [sorted({end for interval in axis for end in interval}) for axis in zip(*boxes, strict=True)]
    if len(axes) == 1:
        return _length([box[0] for box in boxes])
    if prod(len(a) for a in axes) > CELLS or prod(len(a) for a in axes) * len(boxes) > CELLS * 64:
        return None
    filled = np.zeros([len(a) - 1 for a in axes], np.bool_)
    at_end = [{end: n for n, end in enumerate(a)} for a in axes]
    for box in boxes:
        filled[tuple(slice(at[low], at[high]) for at, (low, high) in zip(at_end, box, strict=True))] = True
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
