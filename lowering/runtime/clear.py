"""Buffers with an initial value: before the first task that uses one, the launcher fills its memory.

A clear is not a launch and needs no code of its own. The handler lists memory and the eight bytes to fill it with (an
element, repeated), in the order of the tasks; the launcher does the fills, over the thread pool if that pays.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lowering.llvm.host import MEMCPY, MEMSET, Cell, External, Fields, function
from lowering.runtime.parallel import qd_parallel_for
from lowering.tables import CACHE_LINE, CLEAR, FIELD, FILL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.host import I64, Code, Ptr
    from lowering.runtime.layout import Clear

CLEAR_GRAIN = 1 << 17
"""The fewest bytes of a chunk for another thread: some microseconds of work, as long as waking one takes."""


def pattern_of(element: bytes) -> int:
    """Returns eight bytes of an element, repeated, as a signed number."""
    return int.from_bytes(element * (FIELD // len(element)), sys.byteorder, signed=True)


def clear_table(clears: Sequence[Clear]) -> str:
    """Returns the handler's table of clears, which ends with a record that is before no task."""
    rows = [
        CLEAR.constant(
            before=c.before, slot=c.place.slot, offset=c.place.offset, bytes=c.nbytes, pattern=pattern_of(c.value)
        )
        for c in clears
    ]
    return CLEAR.table([*rows, CLEAR.constant(before=-1, slot=0, offset=0, bytes=0, pattern=0)])


_WIDE = "<8 x i64>"
_ROTATED = External("i64 llvm.fshl.i64(i64, i64, i64)")


@function()
def clear_bytes(c: Code, refs: Ptr, low: I64, high: I64, slot: Ptr) -> None:
    """Fills bytes low .. high-1 of memory with a pattern, repeated; `low` is a multiple of its length."""
    fill, size = Fields(FILL, refs), high - low
    first, pattern = fill.data.at(low), fill.pattern
    with c.when(_ROTATED(c, pattern, pattern, 8).equals(pattern)):
        MEMSET(c, first, pattern.to("i8", "trunc"), size, 0)
        c.give()
    one = c.op(_WIDE, f"insertelement {_WIDE} poison, {pattern}, i64 0")
    wide = c.op(_WIDE, f"shufflevector {one}, {_WIDE} poison, <8 x i32> zeroinitializer")
    blocks, words = size >> 6, size >> 3
    with c.each(0, blocks) as b:
        c.do(f"store {wide}, {first.word(b << 3)}, align 1")
    with c.each(blocks << 3, words) as k:
        c.do(f"store {pattern}, {first.word(k)}, align 1")
    MEMCPY(c, first.word(words), fill.place("pattern"), size & (FIELD - 1), 0)


@function()
def run_clears(c: Code, frame: Ptr, table: Ptr, k: I64, slots: Ptr, threads: I64) -> Ptr:
    """Does the clears of the table that come before task `k`; returns the next one."""
    fill, place = c.record(FILL), Cell(table)
    with c.loop() as leave:
        clear = Fields(CLEAR, place.value)
        leave(clear.before.differs(k))
        fill.put(data=slots.word(clear.slot).load("ptr").at(clear.offset), pattern=clear.pattern)
        # chunks are multiples of a cache line, so no two threads write one, and begin at a multiple of the pattern
        chunks = CLEAR_GRAIN, CACHE_LINE, threads
        qd_parallel_for(c, frame, clear_bytes, fill, 0, clear.bytes, *chunks)
        place.value = clear.row(1).pointer
    return place.value
