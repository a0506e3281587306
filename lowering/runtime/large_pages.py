"""Large pages for large fresh results.

XLA takes memory for results from the system at each call and gives it back after use, so the first store to each page
enters the kernel: 16 000 times for 64 MiB, which takes four times as long as all the rest of a pass over memory. If the
system gives large pages on request only (the usual setting on Linux servers), a request costs one system call per
buffer, and a page is then 2 MiB. The handler lists the results to request them for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import Cell, External, Fields, function
from lowering.tables import LARGE
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from lowering.llvm.host import I64, Code, Ptr
    from lowering.runtime.layout import Layout

LARGE_BYTES = 4 << 20
"""Smallest buffer that is worth a system call: two large pages."""
_PAGE = 4096
_MADV_HUGEPAGE = 14


def large_table(layout: Layout | None) -> str:
    """Returns the handler's table of large results, without those surely in the memory of an operand; -1 ends it. It
    is empty without a layout, if nobody knows the sizes."""
    end = LARGE.constant(slot=-1, bytes=0, source=-1)
    if layout is None:
        return LARGE.table([end])
    before = {result: operand for operand, result in layout.aliases.items()}
    rows: list[str] = []
    for k, size in enumerate([*(ref_type(v).nbytes for v in layout.written), layout.scratch_bytes]):
        slot = layout.operand_count + k
        source = before.get(k, slot)
        if size >= LARGE_BYTES and (source == slot or source in layout.renewed):
            rows.append(LARGE.constant(slot=slot, bytes=size, source=source))
    return LARGE.table([*rows, end])


_ADVISE = External("i32 madvise(ptr, i64, i32)")


@function("cold")
def advise_large(c: Code, data: Ptr, size: I64) -> None:
    """Asks the system for large pages. It may ignore that, and its failure is no error; only Linux is asked."""
    if "linux" in c.module.triple:
        address = data.to("i64", "ptrtoint")
        first, last = address + (_PAGE - 1) & -_PAGE, address + size & -_PAGE
        _ADVISE(c, first.to("ptr", "inttoptr"), last - first, _MADV_HUGEPAGE)


@function("alwaysinline")
def advise_results(c: Code, table: Ptr, slots: Ptr) -> None:
    """Asks for large pages for the results of a table."""
    place = Cell(table)
    with c.loop() as leave:
        large = Fields(LARGE, place.value)
        leave(large.slot < 0)
        data = slots.word(large.slot).load("ptr")
        with c.when(large.source.equals(large.slot) | slots.word(large.source).load("ptr").differs(data)):
            advise_large(c, data, large.bytes)
        place.value = large.row(1).pointer
