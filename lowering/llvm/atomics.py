"""Accumulations and atomics: plain where no other iteration can meet, in the chunk's own memory where there are few
places (`reductions`), else shared (`updates`). `atomic` gives the old value, lane after lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import Global, Place, lane_pointers, locate
from lowering.llvm.combining import combined
from lowering.llvm.facts import reference
from lowering.llvm.lane_loops import each_active
from lowering.llvm.locked import atomic_scalar
from lowering.llvm.memory import load_lanes, load_scalar, store_lanes, store_scalar
from lowering.llvm.private import load_private, store_private
from lowering.llvm.reductions import into_partials
from lowering.llvm.types import MEMORY, REGISTER, REGISTER_BITS
from lowering.llvm.updates import Record, update
from lowering.llvm.vectors import Value
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom, Eqn

# accum


def accum(f: Frame, eqn: Eqn) -> None:
    """`accum`."""
    ref, value, indices, op = reference(eqn), eqn.invars[1], eqn.invars[2:], eqn.params["op"]
    if ref in f.privates:
        private = f.privates[ref]
        old = load_private(f, private, indices)
        store_private(f, private, combined(f, op, old, value), indices)
        return
    if into_partials(f, ref, indices, op, value):
        return
    memory = f.globals[ref]
    if ref in f.facts.private_accums or f.facts.task.kind == "serial":
        place = locate(f, memory, indices)
        f.pending.settle(f, memory, place if ref in f.facts.private_accums else None)
        _plain(f, memory, place, op, value)
    elif ref in f.facts.accumulated:
        f.updates.add(f, ref, op, indices, value)
    else:
        f.pending.settle(f, memory)
        update(f, Record(ref, op, indices, [value]))


def _plain(f: Frame, memory: Global, place: Place, op: str, value: Atom) -> None:
    """Read, combine, write: nobody else touches these elements."""
    if f.is_scalar:
        old = Value(value.dtype, scalar=load_scalar(f, memory, place.pointer))
        new = combined(f, op, old, value).scalar
        assert new is not None
        store_scalar(f, memory, place.pointer, new)
        return
    new_lanes = combined(f, op, load_lanes(f, memory, place, f.mask), value).vectors
    assert new_lanes is not None
    store_lanes(f, memory, place, new_lanes)


# atomic


def atomic(f: Frame, eqn: Eqn) -> None:
    """`atomic`: the old value, lane after lane."""
    op = eqn.params["op"]
    count = 2 if op == "cas" else 1
    ref, values, indices = reference(eqn), list(eqn.invars[1 : 1 + count]), eqn.invars[1 + count :]
    out = eqn.outvars[0]
    if ref in f.privates:
        _private_atomic(f, eqn, op, values, indices)
        return
    memory = f.globals[ref]
    place = locate(f, memory, indices)
    f.pending.settle(f, memory)
    if f.is_scalar:
        scalars = [f.scalar_of(v) for v in values]
        f.env[out] = Value(out.dtype, scalar=atomic_scalar(f, op, out.dtype, memory, place.pointer, scalars))
        return
    f.env[out] = _per_lane(f, memory, place, op, values)


def _per_lane(f: Frame, memory: Global, place: Place, op: str, values: list[Atom]) -> Value:
    """One atomic an active lane, in lane order. Operands and results go through the stack."""
    text, d, width, o = f.text, memory.type.dtype, f.width, f.scalar
    stored = "i8" if d is DType.bool else REGISTER[d]
    pointers = text.slot(f"[{width} x ptr]")
    slots = [text.slot(f"[{width} x {stored}]") for _ in values]
    result = text.slot(f"[{width} x {stored}]")

    def at(slot: str, kind: str, lane: str) -> str:
        return text.op(f"getelementptr {kind}, ptr {slot}, i64 {lane}")

    def one(v: int) -> str:
        text.do(f"store {f.lanes.of('ptr')} {lane_pointers(f, place, MEMORY[d], v)}, ptr {pointers}")
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


def _private_atomic(f: Frame, eqn: Eqn, op: str, values: list[Atom], indices: tuple[Atom, ...]) -> None:
    """On private memory nobody else looks: read, combine, write."""
    private, out = f.privates[reference(eqn)], eqn.outvars[0]
    old = load_private(f, private, indices)
    f.env[out] = old
    if op == "exchange":
        store_private(f, private, f.value(values[0]), indices)
    elif op == "cas":
        store_private(f, private, _chosen(f, old, values[0], values[1]), indices)
    else:
        store_private(f, private, combined(f, op, old, values[0]), indices)


def _chosen(f: Frame, old: Value, expected: Atom, new: Atom) -> Value:
    d = old.dtype

    def one(o: Ops, found: str, wanted: str, then: str) -> str:
        kind = f"i{REGISTER_BITS[d]}"
        bits = [o.cast("bitcast", REGISTER[d], x, kind) for x in (found, wanted)]
        return o.select(o.compare("icmp eq", o.vector(kind), *bits), o.type(d), then, found)

    if old.scalar is not None:
        return Value(d, scalar=one(f.scalar, old.scalar, f.scalar_of(expected), f.scalar_of(new)))
    assert old.vectors is not None
    olds = old.vectors
    return f.each(d, lambda v: one(f.vector, olds[v], f.vector_of(expected, v), f.vector_of(new, v)))
