"""`atomic`: an update that returns the old value, lane after lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.atomics import atomic_scalar
from lowering.llvm.combining import swapped
from lowering.llvm.types import MEMORY, REGISTER
from lowering.llvm.vectors import Value
from lowering.simd.accumulation.lanes import combined, each_active
from lowering.simd.addresses import lane_pointers, locate
from lowering.simd.interleave import settle_stores
from lowering.simd.private import load_private, store_private
from qdtrace.ir.memory import reference
from qdtrace.ir.types import DType

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
    if ref in f.privates:
        _private_atomic(f, eqn, op, values, indices)
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
    stored = "i8" if d is DType.bool else REGISTER[d]
    pointers = text.slot(f"[{width} x ptr]")
    slots = [text.slot(f"[{width} x {stored}]") for _ in values]
    result = text.slot(f"[{width} x {stored}]")

    def at(slot: str, kind: str, lane: str) -> str:
        return text.op(f"getelementptr {kind}, ptr {slot}, i64 {lane}")

    def one(v: int) -> str:
        text.do(f"store {f.lanes.of('ptr')} {lane_pointers(f, address, MEMORY[d], v)}, ptr {pointers}")
        for slot, value in zip(slots, values, strict=True):
            spelled = f.vector_of(value, v)
            raw = f.vector.cast("zext", "i1", spelled, "i8") if d is DType.bool else spelled
            text.do(f"store {f.lanes.of(stored)} {raw}, ptr {slot}")
        text.do(f"store {f.lanes.of(stored)} zeroinitializer, ptr {result}")
        with each_active(f, v) as lane:
            given = [text.op(f"load {stored}, ptr {at(s, stored, lane)}") for s in slots]
            if d is DType.bool:
                given = [o.cast("trunc", "i8", x, "i1") for x in given]
            pointer = text.op(f"load ptr, ptr {at(pointers, 'ptr', lane)}")
            old = atomic_scalar(f, op, d, memory, pointer, given)
            raw = o.cast("zext", "i1", old, "i8") if d is DType.bool else old
            text.do(f"store {stored} {raw}, ptr {at(result, stored, lane)}")
        raw = text.op(f"load {f.lanes.of(stored)}, ptr {result}")
        return f.vector.cast("trunc", "i8", raw, "i1") if d is DType.bool else raw

    return f.each(d, one)


def _private_atomic(f: LaneFrame, eqn: Eqn, op: str, values: list[Atom], indices: tuple[Atom, ...]) -> None:
    """Reads, combines and writes private memory, which no other thread sees."""
    private, out = f.privates[reference(eqn)], eqn.outvars[0]
    old = load_private(f, private, indices)
    f.env[out] = old
    if op == "exchange":
        store_private(f, private, f.value(values[0]), indices)
    elif op == "cas":
        store_private(f, private, _chosen(f, old, values[0], values[1]), indices)
    else:
        store_private(f, private, combined(f, op, old, values[0]), indices)


def _chosen(f: LaneFrame, old: Value, expected: Atom, new: Atom) -> Value:
    d = old.dtype
    if old.scalar is not None:
        return Value(d, scalar=swapped(f.scalar, d, old.scalar, f.scalar_of(expected), f.scalar_of(new)))
    assert old.vectors is not None
    olds = old.vectors
    return f.each(d, lambda v: swapped(f.vector, d, olds[v], f.vector_of(expected, v), f.vector_of(new, v)))
