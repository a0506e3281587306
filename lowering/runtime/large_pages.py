"""Large pages for large fresh results.

XLA takes memory for results from the system at each call and gives it back after use, so the first store to each page
enters the kernel: 16 000 times for 64 MiB, which takes four times as long as all the rest of a pass over memory. If the
system gives large pages on request only (the usual setting on Linux servers), a request costs one system call per
buffer, and a page is then 2 MiB. The handler lists the results to request them for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.tables import LARGE
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from lowering.runtime.layout import Layout

LARGE_BYTES = 4 << 20
"""Smallest buffer that is worth a system call: two large pages."""
_PAGE = 4096
_MADV_HUGEPAGE = 14


def large_table(layout: Layout) -> str:
    """Returns the handler's table of large results, without those in the memory of an operand; -1 ends it."""
    donated = set(layout.aliases.values())
    sizes = [0 if k in donated else ref_type(v).nbytes for k, v in enumerate(layout.written)]
    slots = enumerate([*sizes, layout.scratch_bytes], layout.operand_count)
    rows = [LARGE.constant(slot=slot, bytes=size) for slot, size in slots if size >= LARGE_BYTES]
    return LARGE.table([*rows, LARGE.constant(slot=-1, bytes=0)])


def large_pages(triple: str) -> str:
    """Returns LLVM IR of `advise_large(data, bytes)` and, for a table's results, `advise_results(table, slots)`."""
    return _advice(triple) + _RESULTS


def _advice(triple: str) -> str:
    """Returns `advise_large`. The system may ignore the advice, and its failure is no error; only Linux gets any."""
    if "linux" not in triple:
        return "define internal void @advise_large(ptr %data, i64 %bytes) {\n  ret void\n}\n"
    return f"""
declare i32 @madvise(ptr, i64, i32)

define internal void @advise_large(ptr %data, i64 %bytes) cold {{
  %address = ptrtoint ptr %data to i64
  %end = add i64 %address, %bytes
  %up = add i64 %address, {_PAGE - 1}
  %first = and i64 %up, {-_PAGE}
  %last = and i64 %end, {-_PAGE}
  %length = sub i64 %last, %first
  %page = inttoptr i64 %first to ptr
  %ignored = call i32 @madvise(ptr %page, i64 %length, i32 {_MADV_HUGEPAGE})
  ret void
}}
"""


_RESULTS = f"""
define internal void @advise_results(ptr %table, ptr %slots) alwaysinline {{
entry:
  br label %head
head:
  %large = phi ptr [%table, %entry], [%next, %body]
  {LARGE.load("%large", "slot", "bytes")}
  %any = icmp sge i64 %slot, 0
  br i1 %any, label %body, label %done
body:
  %place = getelementptr ptr, ptr %slots, i64 %slot
  %data = load ptr, ptr %place
  call void @advise_large(ptr %data, i64 %bytes)
  %next = getelementptr i8, ptr %large, i64 {LARGE.size}
  br label %head
done:
  ret void
}}
"""
