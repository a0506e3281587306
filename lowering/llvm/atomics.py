"""Accumulations and atomics: plain where no other iteration can meet, in the chunk's own memory where there are few
places (`reductions`), else one atomic a vector where all lanes meet, and one a lane where they do not.

f16, bf16, bool and products have no instruction of their own; they go through a compare-and-exchange loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import Global, Place, lane_pointers, locate
from lowering.llvm.combining import active_or_identity, combine, combined, reduce_lanes
from lowering.llvm.facts import reference
from lowering.llvm.memory import (
    from_memory,
    load_lanes,
    load_scalar,
    store_lanes,
    store_scalar,
    to_memory,
)
from lowering.llvm.private import load_private, store_private
from lowering.llvm.reductions import into_partials
from lowering.llvm.types import BYTES, MEMORY, REGISTER, REGISTER_BITS, SMALL_FLOATS
from lowering.llvm.vectors import Value
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom, Eqn

_NATIVE = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}


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
    place = locate(f, memory, indices)
    f.pending.settle(f, memory, place if ref in f.facts.private_accums else None)
    d = memory.type.dtype
    if ref in f.facts.private_accums or f.facts.task.kind == "serial":
        _plain(f, memory, place, op, value)
    elif f.is_scalar:
        atomic_scalar(f, op, d, memory, place.pointer, [f.scalar_of(value)])
    elif place.stride == 0:
        total = reduce_lanes(f, op, d, active_or_identity(f, f.mask, op, d, value))
        atomic_scalar(f, op, d, memory, place.pointer, [total])
    else:
        per_lane(f, memory, place, op, [value], returns=False)


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


# One element, other threads around


def atomic_scalar(f: Frame, op: str, d: DType, memory: Global, pointer: str, values: list[str]) -> str:
    """One atomic operation; returns the old value."""
    o, kind = f.scalar, MEMORY[d]
    special = d in SMALL_FLOATS or d is DType.bool
    if op == "cas":
        return _compare_and_swap(f, d, memory, pointer, *values)
    if op == "exchange" or not special:
        native = _native_name(op, d)
        if native is not None:
            raw = to_memory(o, d, values[0])
            order = f"monotonic, align {BYTES[kind]}{memory.alias}"
            return from_memory(o, d, f.text.op(f"atomicrmw {native} ptr {pointer}, {kind} {raw} {order}"))
    return _exchange_loop(f, d, memory, pointer, lambda old: combine(o, op, d, old, values[0]))


def _native_name(op: str, d: DType) -> str | None:
    if op in ("min", "max"):
        if d.is_float:
            return None
        return op if d.is_signed else "u" + op
    if op == "add" and d.is_float:
        return "fadd"
    return _NATIVE.get(op)


def _integer(d: DType) -> str:
    return f"i{d.itemsize * 8}"


def _as_bits(o: Ops, d: DType, value: str) -> str:
    raw = to_memory(o, d, value)
    return o.cast("bitcast", MEMORY[d], raw, _integer(d))


def _from_bits(o: Ops, d: DType, bits: str) -> str:
    return from_memory(o, d, o.cast("bitcast", _integer(d), bits, MEMORY[d]))


def _swap(f: Frame, d: DType, memory: Global, pointer: str, expected: str, new: str) -> tuple[str, str]:
    """Compare-and-exchange of the bits; the bits found and whether it happened."""
    kind = _integer(d)
    pair = f.text.op(
        f"cmpxchg weak ptr {pointer}, {kind} {expected}, {kind} {new} acq_rel monotonic, "
        f"align {d.itemsize}{memory.alias}"
    )
    found = f.text.op(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
    return found, f.text.op(f"extractvalue {{ {kind}, i1 }} {pair}, 1")


def _exchange_loop(f: Frame, d: DType, memory: Global, pointer: str, make: Callable[[str], str]) -> str:
    """Replaces the element by what `make` computes from it; returns the old value."""
    text, kind = f.text, _integer(d)
    first = text.op(f"load atomic {kind}, ptr {pointer} monotonic, align {d.itemsize}{memory.alias}")
    loop, done, before = text.fresh_label("swap"), text.fresh_label("swapped"), text.label
    text.jump(loop)
    text.begin(loop)
    bits, hole = text.name(), text.hole()
    old = _from_bits(f.scalar, d, bits)
    found, happened = _swap(f, d, memory, pointer, bits, _as_bits(f.scalar, d, make(old)))
    text.fill(hole, f"{bits} = phi {kind} [ {first}, %{before} ], [ {found}, %{text.label} ]")
    text.branch(happened, done, loop)
    text.begin(done)
    return old


def _compare_and_swap(f: Frame, d: DType, memory: Global, pointer: str, expected: str, new: str) -> str:
    """Stores `new` where the bits of the element are those of `expected`."""
    kind = _integer(d)
    pair = f.text.op(
        f"cmpxchg ptr {pointer}, {kind} {_as_bits(f.scalar, d, expected)}, {kind} {_as_bits(f.scalar, d, new)} "
        f"acq_rel monotonic, align {d.itemsize}{memory.alias}"
    )
    return _from_bits(f.scalar, d, f.text.op(f"extractvalue {{ {kind}, i1 }} {pair}, 0"))


# Lane after lane


def per_lane(f: Frame, memory: Global, place: Place, op: str, values: list[Atom], *, returns: bool) -> Value | None:
    """One atomic per active lane, in lane order. Operands go through the stack: a lane is then one scalar load."""
    text, d, width = f.text, memory.type.dtype, f.width
    kind, register = MEMORY[d], REGISTER[d]
    stored = "i8" if d is DType.bool else register
    pointers = text.slot(f"[{width} x ptr]")
    slots = [text.slot(f"[{width} x {stored}]") for _ in values]
    result = text.slot(f"[{width} x {stored}]") if returns else ""
    found: list[str] = []
    for v in range(f.vectors):
        text.do(f"store {f.lanes.of('ptr')} {lane_pointers(f, place, kind, v)}, ptr {pointers}")
        for slot, value in zip(slots, values, strict=True):
            spelled = f.vector_of(value, v)
            raw = f.vector.cast("zext", "i1", spelled, "i8") if d is DType.bool else spelled
            text.do(f"store {f.lanes.of(stored)} {raw}, ptr {slot}")
        if returns:
            text.do(f"store {f.lanes.of(stored)} zeroinitializer, ptr {result}")
        _lane_loop(f, v, memory, op, pointers, slots, result, stored)
        if returns:
            raw = text.op(f"load {f.lanes.of(stored)}, ptr {result}")
            found.append(f.vector.cast("trunc", "i8", raw, "i1") if d is DType.bool else raw)
    return Value(d, vectors=found) if returns else None


def _lane_loop(
    f: Frame, v: int, memory: Global, op: str, pointers: str, slots: list[str], result: str, stored: str
) -> None:
    text, d, width = f.text, memory.type.dtype, f.width
    o = f.scalar

    def element(slot: str, kind: str, lane: str) -> str:
        return text.op(f"load {kind}, ptr {text.op(f'getelementptr {kind}, ptr {slot}, i64 {lane}')}")

    bits = text.op(f"bitcast {f.vector.bits} {f.mask_of(f.mask, v)} to i{width}")
    wide = text.op(f"zext i{width} {bits} to i64")
    loop, done, before = text.fresh_label("lane"), text.fresh_label("lanes"), text.label
    inside = text.fresh_label("active")
    text.jump(loop)
    text.begin(loop)
    rest, hole = text.name(), text.hole()
    text.branch(text.op(f"icmp ne i64 {rest}, 0"), inside, done)
    text.begin(inside)
    text.module.declare("llvm.cttz.i64", "i64", "i64, i1")
    lane = text.op(f"call i64 @llvm.cttz.i64(i64 {rest}, i1 true)")
    values = [element(s, stored, lane) for s in slots]
    if d is DType.bool:
        values = [o.cast("trunc", "i8", x, "i1") for x in values]
    old = atomic_scalar(f, op, d, memory, element(pointers, "ptr", lane), values)
    if result:
        raw = o.cast("zext", "i1", old, "i8") if d is DType.bool else old
        text.do(f"store {stored} {raw}, ptr {text.op(f'getelementptr {stored}, ptr {result}, i64 {lane}')}")
    fewer = text.op(f"and i64 {rest}, {text.op(f'add i64 {rest}, -1')}")
    text.fill(hole, f"{rest} = phi i64 [ {wide}, %{before} ], [ {fewer}, %{text.label} ]")
    text.jump(loop)
    text.begin(done)


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
    found = per_lane(f, memory, place, op, values, returns=True)
    assert found is not None
    f.env[out] = found


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
