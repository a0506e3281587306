"""Emission of `accum` by its strategy, and the strategies' code at both ends of a function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.combining import updated
from lowering.plan.sums import Where
from lowering.plan.update_groups import UpdateGroup
from lowering.simd.accumulation.chunk_copies import close_chunk_copies, into_chunk_copy, open_chunk_copies
from lowering.simd.accumulation.exclusive import update_own
from lowering.simd.accumulation.registers import close_registers, into_register, open_registers
from lowering.simd.accumulation.shared import update
from lowering.simd.addresses import locate
from lowering.simd.interleave import settle_stores
from lowering.simd.private import load_private, store_private
from lowering.tables import UNLOCKED
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.program import is_local

if TYPE_CHECKING:
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Eqn


def accum(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `accum` by the strategy of its element; a grouped one is emitted with its group."""
    ref, value, indices, op = reference(eqn), eqn.invars[1], indices_of(eqn), eqn.params["op"]
    if ref in f.privates:
        private = f.privates[ref]
        store_private(f, private, updated(f, op, load_private(f, private, indices), [value]), indices)
        return
    match Where.OWN if is_local(ref) else f.accumulators.plan.sums.where(eqn):
        case Where.REGISTERS:
            into_register(f, (ref, indices), op, value)
        case Where.OWN:
            address = locate(f, f.globals[ref], indices)
            settle_stores(f)
            update_own(f, f.globals[ref], address, op, value)
        case Where.ATOMIC:
            settle_stores(f)
            update(f, UpdateGroup.of(eqn))
        case Where.COPY | Where.SHARED:  # made with its group
            pass


GROUPED = (Where.COPY, Where.SHARED)
"""Ways to keep sums for which components are updated together."""


def update_group(f: LaneFrame, group: UpdateGroup) -> None:
    """Emits the accumulations of a group."""
    if f.accumulators.plan.sums.where(group.last) is Where.COPY:
        into_chunk_copy(f, group)
    else:
        update(f, group)


def open_accumulators(f: LaneFrame, constant: str, *, clear: bool = True) -> None:
    """Opens the sums and copies of a task's strategies; `constant` is the metadata of loads of constant memory.

    Without `clear`, a function continues with what its caller has opened in the slot, which is all (`is_in_slot`).
    """
    if f.accumulators.plan.is_shared:
        word = f.text.op(f"getelementptr i64, ptr %refs, i64 {f.table_length + UNLOCKED}")
        flag = f.text.op(f"load i64, ptr {word}, align 8{constant}")
        f.accumulators.alone = f.text.op(f"icmp ne i64 {flag}, 0")
    open_registers(f)
    open_chunk_copies(f, clear=clear)


def close_accumulators(f: LaneFrame) -> None:
    """Stores privatised values in the slot of the chunk."""
    close_registers(f)
    close_chunk_copies(f)
