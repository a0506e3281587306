"""Buffers with an initial value: before the first task that uses one, the launcher fills its memory.

A clear is not a launch and needs no code of its own. The handler lists memory and the eight bytes to fill it with (an
element, repeated), in the order of the tasks; the launcher does the fills, over the thread pool if that pays.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from lowering.tables import CACHE_LINE, CLEAR, FIELD, FILL

if TYPE_CHECKING:
    from collections.abc import Sequence

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


CLEARS = f"""
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
declare i64 @llvm.fshl.i64(i64, i64, i64)

; bytes lo .. hi-1 of memory become a pattern, repeated; lo is a multiple of its length
define internal void @clear_bytes(ptr %refs, i64 %lo, i64 %hi, ptr %slot) {{
entry:
  {FILL.load("%refs", "data", "pattern")}
  %first = getelementptr i8, ptr %data, i64 %lo
  %bytes = sub i64 %hi, %lo
  %turned = call i64 @llvm.fshl.i64(i64 %pattern, i64 %pattern, i64 8)
  %plain = icmp eq i64 %turned, %pattern
  br i1 %plain, label %same, label %different
same:
  %byte = trunc i64 %pattern to i8
  call void @llvm.memset.p0.i64(ptr %first, i8 %byte, i64 %bytes, i1 false)
  ret void
different:
  %one = insertelement <8 x i64> poison, i64 %pattern, i64 0
  %wide = shufflevector <8 x i64> %one, <8 x i64> poison, <8 x i32> zeroinitializer
  %blocks = lshr i64 %bytes, 6
  br label %blocks_head
blocks_head:
  %b = phi i64 [0, %different], [%b1, %block]
  %whole = icmp ult i64 %b, %blocks
  br i1 %whole, label %block, label %rest_of_words
block:
  %pb = getelementptr <8 x i64>, ptr %first, i64 %b
  store <8 x i64> %wide, ptr %pb, align 1
  %b1 = add i64 %b, 1
  br label %blocks_head
rest_of_words:
  %words_done = shl i64 %blocks, 3
  %words = lshr i64 %bytes, 3
  br label %head
head:
  %k = phi i64 [%words_done, %rest_of_words], [%k1, %body]
  %inside = icmp ult i64 %k, %words
  br i1 %inside, label %body, label %tail
body:
  %p = getelementptr i64, ptr %first, i64 %k
  store i64 %pattern, ptr %p, align 1
  %k1 = add i64 %k, 1
  br label %head
tail:
  %end = getelementptr i64, ptr %first, i64 %words
  %rest = and i64 %bytes, 7
  %source = getelementptr i8, ptr %refs, i64 {FILL.offsets["pattern"]}
  call void @llvm.memcpy.p0.p0.i64(ptr %end, ptr %source, i64 %rest, i1 false)
  ret void
}}

; does the clears of the table that come before task %k, and gives the next one
define internal ptr @run_clears(ptr %frame, ptr %table, i64 %k, ptr %slots, i64 %threads) {{
entry:
  %fill = alloca [{FILL.size} x i8], align 8
  br label %head
head:
  %clear = phi ptr [%table, %entry], [%next, %body]
  {CLEAR.load("%clear", "before")}
  %due = icmp eq i64 %before, %k
  br i1 %due, label %body, label %done
body:
  {CLEAR.load("%clear", "slot", "offset", "bytes", "pattern")}
  %ps = getelementptr ptr, ptr %slots, i64 %slot
  %base = load ptr, ptr %ps
  %data = getelementptr i8, ptr %base, i64 %offset
  {FILL.store("%fill", "data", "pattern")}
  ; chunks are multiples of a cache line, so no two threads write one, and begin at a multiple of the pattern
  call void @qd_parallel_for(ptr %frame, ptr @clear_bytes, ptr %fill, i64 0, i64 %bytes, i64 {CLEAR_GRAIN},
                             i64 {CACHE_LINE}, i64 %threads)
  %next = getelementptr i8, ptr %clear, i64 {CLEAR.size}
  br label %head
done:
  ret ptr %clear
}}
"""
