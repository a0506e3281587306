"""Cells and private arrays of a thread, in local memory or in its part of the scratch (`stacks`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import private
from lowering.llvm.descriptions import PrivateMemory
from lowering.llvm.types import BYTES, PRIVATE
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from lowering.simt.frame import KernelFrame
    from qdtrace.ir.program import Eqn


def allocate(f: KernelFrame, eqn: Eqn) -> None:
    """Emits `cell`: an array in local memory, or in the thread's part of the scratch."""
    out, stacks, text = eqn.outvars[0], f.plan.stacks, f.text
    if out not in stacks.offsets:
        private.allocate(f, eqn)
        return
    size, warp = BYTES[PRIVATE[out.dtype]], f.device.warp

    def of_warp() -> str:
        number = text.op(f"udiv i64 {f.position()}, {warp}")
        return text.op(f"add i64 {text.op(f'mul i64 {number}, {warp * stacks.nbytes}')}, {f.plan.stacks_at}")

    lane = text.op(f"mul i64 {text.op(f'urem i64 {f.position()}, {warp}')}, {size}")
    first = text.op(f"add i64 {text.op(f'add i64 {of_warp()}, {warp * stacks.offsets[out]}')}, {lane}")
    pointer = text.op(f"getelementptr i8, ptr %scratch, i64 {first}")
    f.privates[out] = PrivateMemory(pointer, ref_type(out), shared=False, stride=warp)
