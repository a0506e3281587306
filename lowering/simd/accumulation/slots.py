"""Slots keep the privatised values of a chunk of iterations until all chunks have run.

A slot holds the elements of each part contiguously. `qd_combine` combines slots in the order of the chunks and each
element with memory once. So nothing depends on which thread ran which chunk, and no update needs an atomic operation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead, in_range
from lowering.llvm.descriptions import GlobalMemory
from lowering.simd.accumulation.elements import for_elements, merge_elements
from lowering.simd.addresses import locate
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from lowering.llvm.ops import Ops
    from lowering.plan.sums import Part, Slot
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.types import DType


def in_slot(f: LaneFrame, part: Part, slot: str, alias: str) -> GlobalMemory:
    """Returns the elements of a part in a slot as memory."""
    type_ = replace(ref_type(part.ref), dtype=part.dtype)
    return GlobalMemory(ahead(f, "i8", slot, part.offset), type_, alias, "")


def emit_combine(f: LaneFrame, slot: Slot) -> None:
    """Emits the body of `qd_combine`: merges all slots into the first, in order, then the first into memory."""
    for part in slot.parts:
        first = in_slot(f, part, "%slots", "")
        with f.text.counted("1", "%count", 1) as k, f.region():
            following = f.text.op(f"mul i64 {k}, {slot.nbytes}")
            other = in_slot(f, part, f.text.op(f"getelementptr i8, ptr %slots, i64 {following}"), "")
            _merge(f, part, first, other, part.dtype)
    for part in slot.parts:
        memory = f.globals[part.ref]
        if part.indices is None:
            _merge(f, part, memory, in_slot(f, part, "%slots", ""), part.ref.dtype)
            continue
        # an element out of range got no accumulation
        with f.text.when(in_range(f, memory, part.indices)), f.region():
            element = GlobalMemory(locate(f, memory, part.indices).pointer, memory.type, memory.alias, "")
            _merge(f, part, element, in_slot(f, part, "%slots", ""), part.ref.dtype)


def _merge(f: LaneFrame, part: Part, into: GlobalMemory, more: GlobalMemory, d: DType) -> None:
    def make(o: Ops, k: str) -> None:
        merge_elements(f, o, part.op, d, into, more, k)

    for_elements(f, part.size, make)
