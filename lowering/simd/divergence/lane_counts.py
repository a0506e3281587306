"""Counters of a loop's iterations under masks, and of the lanes active in them, at run time (`spread`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.descriptions import LaneCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Eqn


def open_counts(f: LaneFrame, loop: Eqn) -> LaneCounts:
    """Returns counters that are zero."""
    slots = [f.text.slot("i64", 8) for _ in range(3)]
    for slot in slots:
        f.text.do(f"store i64 0, ptr {slot}")
    return LaneCounts(loop, *slots)


def count(f: LaneFrame, loop: Eqn, live: Sequence[str], busy: int) -> None:
    """Emits the count of one iteration of a loop, with these masks, if the function counts that loop.

    It takes as long as an iteration of `busy` vectors when all run side by side.
    """
    counts = f.counts
    if counts is None or counts.loop is not loop:
        return
    _add(f, counts.iterations, str(busy))
    for mask in live:
        _add(f, counts.lanes, f.active(mask))


def count_entry(f: LaneFrame, loop: Eqn) -> None:
    """Emits the count of the lanes that enter a loop, if the function counts that loop."""
    counts = f.counts
    if counts is not None and counts.loop is loop:
        for v in range(f.vectors):
            _add(f, counts.entries, str(f.width) if f.mask.vectors is None else f.active(f.mask.vectors[v]))


def _add(f: LaneFrame, slot: str, amount: str) -> None:
    before = f.text.op(f"load i64, ptr {slot}")
    f.text.do(f"store i64 {f.text.op(f'add i64 {before}, {amount}')}, ptr {slot}")


def close_counts(f: LaneFrame, counts: LaneCounts) -> None:
    """Stores the counts into %counts."""
    for k, slot in enumerate((counts.iterations, counts.lanes, counts.entries)):
        pointer = f.text.op(f"getelementptr i64, ptr %counts, i64 {k}")
        found = f.text.op(f"load i64, ptr {slot}")
        f.text.do(f"store i64 {found}, ptr {pointer}")
