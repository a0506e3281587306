"""The merge of threads' copies of shared arrays, if the launcher gives them copies: `qd_merge`.

`qd_merge(job, lo, hi, slot)` merges cache lines lo .. hi-1 of all copies, in order, into the arrays, so it is cut into
chunks like a task. The job has the references, the copies and their number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.descriptions import GlobalMemory
from lowering.llvm.types import BYTES, MEMORY
from lowering.simd.accumulation.elements import merge_elements
from lowering.tables import CACHE_LINE, MERGE
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from lowering.plan.sums import Part, Slot
    from lowering.simd.frame import LaneFrame

UNROLL = 4


def emit_merge(f: LaneFrame, copies: Slot) -> None:
    """Emits the body of `qd_merge`, after the references have been bound."""
    text = f.text
    first = text.op(f"load ptr, ptr {ahead(f, 'i8', '%job', MERGE.offsets['copies'])}")
    count = text.op(f"load i64, ptr {ahead(f, 'i8', '%job', MERGE.offsets['others'])}")
    for array in copies.parts:
        low, high = (_element(f, array, line) for line in ("%lo", "%hi"))
        length = text.op(f"sub i64 {high}, {low}")
        whole = text.op(f"add i64 {low}, {text.op(f'and i64 {length}, {-f.width}')}")
        with text.counted("0", count, 1) as k, f.region():
            copy = text.op(f"getelementptr i8, ptr {first}, i64 {text.op(f'mul i64 {k}, {copies.nbytes}')}")
            into = f.globals[array.ref]
            more = GlobalMemory(ahead(f, "i8", copy, array.offset), ref_type(array.ref), "", "")
            with text.counted(low, whole, f.width, UNROLL) as n, f.region():
                merge_elements(f, f.vector, array.op, array.ref.dtype, into, more, n)
            with text.counted(whole, high, 1) as n, f.region():
                merge_elements(f, f.scalar, array.op, array.ref.dtype, into, more, n)


def _element(f: LaneFrame, array: Part, line: str) -> str:
    """Returns the array's first element in or after a cache line, clamped to the array."""
    text = f.text
    for name in ("smax", "smin"):
        text.module.declare(f"llvm.{name}.i64", "i64", "i64, i64")
    at = text.op(f"sub i64 {text.op(f'mul i64 {line}, {CACHE_LINE}')}, {array.offset}")
    at = text.op(f"call i64 @llvm.smax.i64(i64 {at}, i64 0)")
    at = text.op(f"call i64 @llvm.smin.i64(i64 {at}, i64 {array.nbytes})")
    return text.op(f"udiv exact i64 {at}, {BYTES[MEMORY[array.ref.dtype]]}")
