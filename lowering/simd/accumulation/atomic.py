"""`atomic`: an update that returns the old value, lane after lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.atomics import atomic_scalar
from lowering.llvm.combining import updated
from lowering.llvm.private import from_private, to_private
from lowering.llvm.types import MEMORY, PRIVATE
from lowering.llvm.vectors import Value
from lowering.simd.accumulation.lanes import each_active
from lowering.simd.addresses import lane_pointers, locate
from lowering.simd.interleave import settle_stores
from lowering.simd.private import load_private, store_private
from qdtrace.ir.memory import reference

if TYPE_CHECKING:
    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.descriptions import Address
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn


def atomic(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `atomic`, lane after lane; its result is the old value."""
    op = eqn.params["op"]
    count = 2 if op == "cas" else 1
    ref, values, indices = reference(eqn), list(eqn.invars[1 : 1 + count]), eqn.invars[1 + count :]
    out = eqn.outvars[0]
    if ref in f.privates:  # which no other thread sees
        f.env[out] = old = load_private(f, f.privates[ref], indices)
        store_private(f, f.privates[ref], updated(f, op, old, values), indices)
        return
    memory = f.globals[ref]
    address = locate(f, memory, indices)
    settle_stores(f)
    if f.is_scalar:
        scalars = [f.scalar_of(v) for v in values]
        f.env[out] = Value(out.dtype, scalar=atomic_scalar(f, op, out.dtype, memory, address.pointer, scalars))
        return
    f.env[out] = _per_lane(f, memory, address, op, values)


def _per_lane(f: LaneFrame, memory: GlobalMemory, address: Address, op: str, values: list[Atom]) -> Value:
    """Emits one atomic operation per active lane, in lane order. Operands and results go through the stack."""
    text, d, width, o = f.text, memory.type.dtype, f.width, f.scalar
    stored = PRIVATE[d]
    pointers = text.slot(f"[{width} x ptr]")
    slots = [text.slot(f"[{width} x {stored}]") for _ in values]
    result = text.slot(f"[{width} x {stored}]")

    def at(slot: str, kind: str, lane: str) -> str:
        return text.op(f"getelementptr {kind}, ptr {slot}, i64 {lane}")

    def one(v: int) -> str:
        text.do(f"store {f.lanes.of('ptr')} {lane_pointers(f, address, MEMORY[d], v)}, ptr {pointers}")
        for slot, value in zip(slots, values, strict=True):
            text.do(f"store {f.lanes.of(stored)} {to_private(f.vector, d, f.vector_of(value, v))}, ptr {slot}")
        text.do(f"store {f.lanes.of(stored)} zeroinitializer, ptr {result}")
        with each_active(f, v) as lane:
            given = [text.op(f"load {stored}, ptr {at(s, stored, lane)}") for s in slots]
            given = [from_private(o, d, x) for x in given]
            pointer = text.op(f"load ptr, ptr {at(pointers, 'ptr', lane)}")
            old = atomic_scalar(f, op, d, memory, pointer, given)
            raw = to_private(o, d, old)
            text.do(f"store {stored} {raw}, ptr {at(result, stored, lane)}")
        return from_private(f.vector, d, text.op(f"load {f.lanes.of(stored)}, ptr {result}"))

    return f.each(d, one)
