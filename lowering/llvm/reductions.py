"""Reductions inside a chunk: into registers where the place is the same for all iterations, else into the chunk's own
copy of a small array.

Lanes that name the same element of a copy would lose updates, so they update it one after another, without atomics, as
no other thread sees it. Where there is room, lanes have copies of their own, element by element side by side: updates
of one element then need not wait for each other, and when all lanes name the same element it is one vector.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lowering.llvm.addresses import Global, Place, locate
from lowering.llvm.combining import active_or_identity, combine, combined, reduce_lanes
from lowering.llvm.facts import COPY_WORK
from lowering.llvm.memory import from_memory, load_lanes, load_scalar, store_lanes, store_scalar, to_memory
from lowering.llvm.partials import clear_elements, in_slot, load_elements, store_elements
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from qdtrace.ir.combining import identity
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.frame import Frame
    from lowering.llvm.partials import Part
    from qdtrace.ir.program import Atom, Var

LANES_BYTES = 1 << 16
"""Memory of all copies that lanes have for themselves."""
UNROLL = 8
"""Lanes a turn of the loop over lanes, shared by all such loops of a task: a tenth faster, at the price of code."""
_ZERO = literal(0, DType.i32)


@dataclass(frozen=True, slots=True)
class Copy:
    """Memory that only this chunk sees."""

    memory: Global
    """As many elements as the reference, those of all copies side by side (the last axis, where there are several);
    and one a lane more, where inactive lanes go."""
    count: int
    """Copies: lane l has number `l % count`."""


def open_reductions(f: Frame) -> None:
    """Makes registers and copies of all that the task reduces, with the identity in them."""
    for (ref, indices), op in f.facts.reductions.items():
        d = compute_dtype(ref.dtype)
        slot = f.text.slot(f"[{f.vectors} x {f.lanes.of(MEMORY[d])}]")
        for v in range(f.vectors):
            _write_sum(f, slot, d, v, f.vector.constant(identity(op, d).value, d))
        f.accumulators[(ref, indices)] = slot
    room = LANES_BYTES
    for part in f.partials:
        if part.indices is None:
            copy = _make_copy(f, part, room)
            room -= copy.memory.type.nbytes if copy.count > 1 else 0
            clear_elements(f, copy.memory, copy.memory.type.size, part.op)
            f.copies[part.ref] = copy


def _make_copy(f: Frame, part: Part, room: int) -> Copy:
    shared = in_slot(f, part, "%slot", f.globals[part.ref].alias)
    count, size = f.width, shared.type.size
    while count > 1 and (shared.type.nbytes * count > room or f.facts.work < COPY_WORK * size * count):
        count //= 2
    if count == 1:
        return Copy(shared, count)
    type_ = replace(shared.type, shape=(*shared.type.shape, count))
    return Copy(Global(f.text.slot(f"[{type_.size + f.width} x {MEMORY[part.dtype]}]"), type_, "", ""), count)


def close_reductions(f: Frame) -> None:
    """Puts what the chunk has reduced into its slot; a serial task, which has none, into memory."""
    for (ref, indices), op in f.facts.reductions.items():
        if f.facts.task.kind == "serial":
            memory, pointer = f.globals[ref], locate(f, f.globals[ref], indices).pointer
            total = combine(f.scalar, op, ref.dtype, load_scalar(f, memory, pointer), _total(f, ref, indices, op))
            store_scalar(f, memory, pointer, total)
    for part in f.partials:
        slot = in_slot(f, part, "%slot", f.globals[part.ref].alias)
        if part.indices is not None:
            store_elements(f, f.scalar, slot, "0", _total(f, part.ref, part.indices, part.op))
        elif f.copies[part.ref].count > 1:
            _join_copies(f, part, f.copies[part.ref], slot)


def _total(f: Frame, ref: Var, indices: tuple[Atom, ...], op: str) -> str:
    d = compute_dtype(ref.dtype)
    slot = f.accumulators[(ref, indices)]
    return reduce_lanes(f, op, d, [_read_sum(f, slot, d, v) for v in range(f.vectors)])


def _join_copies(f: Frame, part: Part, copy: Copy, slot: Global) -> None:
    with f.text.counted("0", str(part.size), 1) as k, f.region():
        first = f.text.op(f"mul i64 {k}, {copy.count}")
        if copy.count == f.width:
            total = reduce_lanes(f, part.op, part.dtype, [load_elements(f, f.vector, copy.memory, first)])
        else:
            total = load_elements(f, f.scalar, copy.memory, first)
            for n in range(1, copy.count):
                other = load_elements(f, f.scalar, copy.memory, f.text.op(f"add i64 {first}, {n}"))
                total = combine(f.scalar, part.op, part.dtype, total, other)
        store_elements(f, f.scalar, slot, k, total)


def into_partials(f: Frame, ref: Var, indices: tuple[Atom, ...], op: str, value: Atom) -> bool:
    """Accumulates into what the chunk has of its own; False when it has nothing for this place."""
    slot = f.accumulators.get((ref, indices))
    if slot is not None:
        _into_register(f, slot, op, value)
        return True
    copy = f.copies.get(ref)
    if copy is not None:
        _into_copy(f, copy, indices, op, value)
        return True
    return False


# Registers: stack slots that LLVM turns into them


def _sum_pointer(f: Frame, slot: str, kind: str, v: int) -> str:
    return slot if v == 0 else f.text.op(f"getelementptr {kind}, ptr {slot}, i64 {v}")


def _read_sum(f: Frame, slot: str, d: DType, v: int) -> str:
    kind = f.lanes.of(MEMORY[d])
    return from_memory(f.vector, d, f.text.op(f"load {kind}, ptr {_sum_pointer(f, slot, kind, v)}"))


def _write_sum(f: Frame, slot: str, d: DType, v: int, value: str) -> None:
    kind = f.lanes.of(MEMORY[d])
    raw = to_memory(f.vector, d, value)
    f.text.do(f"store {kind} {raw}, ptr {_sum_pointer(f, slot, kind, v)}")


def _into_register(f: Frame, slot: str, op: str, value: Atom) -> None:
    d = compute_dtype(value.dtype)
    for v in range(f.vectors):
        old = _read_sum(f, slot, d, v)
        _write_sum(f, slot, d, v, f.blend(f.mask, d, combine(f.vector, op, d, old, f.vector_of(value, v)), old, v))


# Copies


def _into_copy(f: Frame, copy: Copy, indices: tuple[Atom, ...], op: str, value: Atom) -> None:
    memory = copy.memory
    d = memory.type.dtype
    place = locate(f, memory, (*indices, _ZERO) if copy.count > 1 else indices)
    if f.is_scalar:
        _into_element(f, memory, place, op, f.scalar_of(value))
    elif place.stride == 0 and copy.count == f.width:
        _into_all_lanes(f, memory, place, op, value)
    elif place.stride == 0:
        total = reduce_lanes(f, op, d, active_or_identity(f, f.mask, op, d, value))
        _into_element(f, memory, place, op, total)
    elif place.stride == 1 and copy.count == 1:
        lanes = combined(f, op, load_lanes(f, memory, place, f.mask), value).vectors
        assert lanes is not None
        store_lanes(f, memory, place, lanes)
    else:
        _lane_after_lane(f, copy, place, op, value)


def _into_element(f: Frame, memory: Global, place: Place, op: str, value: str) -> None:
    old = load_scalar(f, memory, place.pointer)
    store_scalar(f, memory, place.pointer, combine(f.scalar, op, memory.type.dtype, old, value))


def _into_all_lanes(f: Frame, memory: Global, place: Place, op: str, value: Atom) -> None:
    """The element is the same for all lanes: their copies of it are a vector."""
    d, here = memory.type.dtype, replace(memory, pointer=place.pointer)
    total = load_elements(f, f.vector, here, "0")
    for v in range(f.vectors):
        total = f.blend(f.mask, d, combine(f.vector, op, d, total, f.vector_of(value, v)), total, v)
    store_elements(f, f.vector, here, "0", total)


def _lane_after_lane(f: Frame, copy: Copy, place: Place, op: str, value: Atom) -> None:
    """A load, an operation and a store a lane. Inactive lanes go to elements of their own: no branch is needed."""
    text, memory = f.text, copy.memory
    d, total = memory.type.dtype, f.width * f.vectors
    kind = MEMORY[d]
    places, values = text.slot(f"[{total} x i32]"), text.slot(f"[{total} x {kind}]")
    for v in range(f.vectors):
        text.do(f"store {f.lanes.of('i32')} {_elements(f, copy, place, v)}, ptr {_ahead(f, places, 'i32', v)}")
        raw = to_memory(f.vector, d, f.vector_of(value, v))
        text.do(f"store {f.lanes.of(kind)} {raw}, ptr {_ahead(f, values, kind, v)}")
    places_named = sum(len(f.facts.effects[ref]) for ref in f.copies)
    with text.counted("0", str(total), 1, max(1, UNROLL // places_named)) as lane:
        element = text.op(f"load i32, ptr {text.op(f'getelementptr i32, ptr {places}, i64 {lane}')}")
        raw = text.op(f"load {kind}, ptr {text.op(f'getelementptr {kind}, ptr {values}, i64 {lane}')}")
        pointer = text.op(f"getelementptr {kind}, ptr {memory.pointer}, i32 {element}")
        _into_element(f, memory, Place(pointer, 0), op, from_memory(f.scalar, d, raw))


def _ahead(f: Frame, pointer: str, kind: str, v: int) -> str:
    return f.text.op(f"getelementptr {f.lanes.of(kind)}, ptr {pointer}, i64 {v}") if v else pointer


def _elements(f: Frame, copy: Copy, place: Place, v: int) -> str:
    """Element numbers in the copy, of vector v."""
    o, i32, memory = f.vector, f.lanes.of("i32"), copy.memory
    if place.offsets is not None:
        found = o.cast("trunc", "i64", place.offsets[v], "i32") if place.offset_type == "i64" else place.offsets[v]
    else:
        assert place.stride is not None
        found = f.lanes.range("i32", v * f.width * place.stride, place.stride)
    if place.pointer != memory.pointer:
        found = o.binary("add", i32, found, f.spread("i32", _first(f, memory, place)))
    if copy.count > 1:
        numbers = f.lanes.sequence("i32", [k % copy.count for k in range(f.width)])
        found = o.binary("add", i32, found, numbers)
    if f.mask.vectors is not None:
        found = o.select(f.mask.vectors[v], i32, found, f.lanes.range("i32", memory.type.size))
    return found


def _first(f: Frame, memory: Global, place: Place) -> str:
    """The number of the element at a place's pointer."""
    text, size = f.text, BYTES[MEMORY[memory.type.dtype]]

    def make() -> str:
        here, base = (text.op(f"ptrtoint ptr {p} to i64") for p in (place.pointer, memory.pointer))
        distance = text.op(f"sub i64 {here}, {base}")
        return text.op(f"trunc i64 {text.op(f'sdiv exact i64 {distance}, {size}')} to i32")

    return f.cached(("element of", memory.pointer, place.pointer), make)
