"""Large pages for large fresh results.

XLA takes memory for results from the system at each call and gives it back after use, so the first store to each page
enters the kernel: 16 000 times for 64 MiB, which takes four times as long as all the rest of a pass over memory. Where
the system gives large pages on request only (the usual setting on Linux servers), asking costs one system call a
buffer, and a page is then 2 MiB.
"""

from __future__ import annotations

LARGE_BYTES = 4 << 20
"""Smallest buffer that is worth a system call: two large pages."""
_PAGE = 4096
_MADV_HUGEPAGE = 14


def large_bytes(size: int) -> int:
    """The size of a buffer that wants large pages, else 0."""
    return size if size >= LARGE_BYTES else 0


def large_pages(triple: str) -> str:
    """LLVM IR of `advise_large(data, bytes)`, which does nothing on other systems than Linux.

    It is advice: whether it is followed is up to the system, and its failure is no error.
    """
    if "linux" not in triple:
        return "define internal void @advise_large(ptr %data, i64 %bytes) {\n  ret void\n}"
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
