"""Elements that all iterations accumulate into, privatised per lane: sums in registers, stored in the slot at the end.

A serial task has no slot; its sums are combined with memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.combining import combine
from lowering.llvm.memory import from_memory, load_scalar, store_scalar, to_memory
from lowering.llvm.types import MEMORY, compute_dtype
from lowering.plan.sums import Where
from lowering.simd.accumulation.elements import store_elements
from lowering.simd.accumulation.lanes import reduce_lanes
from lowering.simd.accumulation.slots import in_slot
from lowering.simd.addresses import locate
from qdtrace.ir.combining import identity

if TYPE_CHECKING:
    from lowering.plan.sums import Part, Place
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom
    from qdtrace.ir.types import DType


def open_registers(f: LaneFrame) -> None:
    """Creates the sums and fills them with the identity."""
    for part in f.accumulators.plan.sums.of(Where.REGISTERS):
        d = part.dtype
        slot = f.text.slot(f"[{f.vectors} x {f.lanes.of(MEMORY[d])}]")
        for v in range(f.vectors):
            _write(f, slot, d, v, f.vector.constant(identity(part.op, d).value, d))
        f.accumulators.registers[part.place] = slot


def into_register(f: LaneFrame, place: Place, op: str, value: Atom) -> None:
    """Accumulates the values of active lanes into the sums."""
    d, slot = compute_dtype(value.dtype), f.accumulators.registers[place]
    for v in range(f.vectors):
        old = _read(f, slot, d, v)
        _write(f, slot, d, v, f.blend(f.mask, d, combine(f.vector, op, d, old, f.vector_of(value, v)), old, v))


def close_registers(f: LaneFrame) -> None:
    """Stores the sums of all lanes in the slot of the chunk, or combines those of a serial task with memory."""
    plan = f.accumulators.plan
    if f.facts.task.kind == "serial":
        for part in plan.sums.of(Where.REGISTERS):
            memory = f.globals[part.ref]
            pointer = locate(f, memory, part.indices or ()).pointer
            old = load_scalar(f, memory, pointer)
            store_scalar(f, memory, pointer, combine(f.scalar, part.op, part.ref.dtype, old, _total(f, part)))
    for part in plan.slot.parts:
        if part.indices is not None:
            slot = in_slot(f, part, "%slot", f.globals[part.ref].alias)
            store_elements(f, f.scalar, slot, "0", _total(f, part))


def _total(f: LaneFrame, part: Part) -> str:
    d, slot = part.dtype, f.accumulators.registers[part.place]
    return reduce_lanes(f, part.op, d, [_read(f, slot, d, v) for v in range(f.vectors)])


def _pointer(f: LaneFrame, slot: str, kind: str, v: int) -> str:
    return slot if v == 0 else f.text.op(f"getelementptr {kind}, ptr {slot}, i64 {v}")


def _read(f: LaneFrame, slot: str, d: DType, v: int) -> str:
    kind = f.lanes.of(MEMORY[d])
    return from_memory(f.vector, d, f.text.op(f"load {kind}, ptr {_pointer(f, slot, kind, v)}"))


def _write(f: LaneFrame, slot: str, d: DType, v: int, value: str) -> None:
    kind = f.lanes.of(MEMORY[d])
    raw = to_memory(f.vector, d, value)
    f.text.do(f"store {kind} {raw}, ptr {_pointer(f, slot, kind, v)}")
