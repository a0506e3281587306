"""Small arrays, privatised per chunk: iterations accumulate into a copy of the array in the slot of their chunk.

Lanes with the same element of a copy would lose updates, so they update it one after another, without atomics, as no
other thread sees it. If there is room, lanes have copies of their own, interleaved element by element: updates of one
element then need not wait for each other, and if all lanes have the same element the update is one vector operation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.combining import combine, updated
from lowering.llvm.descriptions import GlobalMemory
from lowering.llvm.memory import from_memory, load_scalar, store_scalar, to_memory
from lowering.llvm.types import BYTES, MEMORY
from lowering.simd.accumulation.components import side_by_side, update_components
from lowering.simd.accumulation.elements import clear_elements, load_elements, store_elements
from lowering.simd.accumulation.lanes import active_or_identity, reduce_lanes
from lowering.simd.accumulation.slots import in_slot
from lowering.simd.accumulation.state import ChunkCopy
from lowering.simd.addresses import locate
from lowering.simd.descriptions import Address
from lowering.simd.memory import load_lanes, store_lanes
from qdtrace.ir.program import literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.plan.sums import Part
    from lowering.plan.update_groups import UpdateGroup
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom

UNROLL = 8
"""Unrolling of the loop over lanes, shared by all such loops of a task: a tenth faster, at the price of code."""
_ZERO = literal(0, DType.i32)


def open_chunk_copies(f: LaneFrame, *, clear: bool = True) -> None:
    """Creates the copies and fills them with the identity, or uses those of the caller if not `clear`."""
    for part in f.accumulators.plan.slot.parts:
        if part.indices is None:
            copy = f.accumulators.copies[part.ref] = _make_copy(f, part)
            if clear:
                clear_elements(f, copy.memory, copy.memory.type.size, part.op)


def _make_copy(f: LaneFrame, part: Part) -> ChunkCopy:
    shared, count = in_slot(f, part, "%slot", f.globals[part.ref].alias), part.lanes
    if count == 1:
        return ChunkCopy(shared, count)
    type_ = replace(shared.type, shape=(*shared.type.shape, count))
    memory = f.text.slot(f"[{type_.size + f.width} x {MEMORY[part.dtype]}]")
    return ChunkCopy(GlobalMemory(memory, type_, "", ""), count)


def close_chunk_copies(f: LaneFrame) -> None:
    """Merges the copies of lanes into the slot."""
    for part in f.accumulators.plan.slot.parts:
        if part.indices is None and part.lanes > 1:
            slot = in_slot(f, part, "%slot", f.globals[part.ref].alias)
            _merge_lanes(f, part, f.accumulators.copies[part.ref], slot)


def _merge_lanes(f: LaneFrame, part: Part, copy: ChunkCopy, slot: GlobalMemory) -> None:
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


def into_chunk_copy(f: LaneFrame, group: UpdateGroup) -> None:
    """Accumulates the values of active lanes into the copy."""
    copy = f.accumulators.copies[group.ref]
    if len(group.values) != 1:
        address = locate(f, copy.memory, group.indices) if copy.count == 1 and not f.is_scalar else None
        if address is None or address.stride in (0, 1):
            for one in group.alone():
                into_chunk_copy(f, one)
        else:
            _lane_after_lane(f, copy, address, group)
        return
    op, (value,) = group.op, group.values
    memory = copy.memory
    d = memory.type.dtype
    address = locate(f, memory, (*group.indices, _ZERO) if copy.count > 1 else group.indices)
    if f.is_scalar:
        _into_element(f, memory, address, op, f.scalar_of(value))
    elif address.stride == 0 and copy.count == f.width:
        _into_all_lanes(f, memory, address, op, value)
    elif address.stride == 0:
        total = reduce_lanes(f, op, d, active_or_identity(f, f.mask, op, d, value))
        _into_element(f, memory, address, op, total)
    elif address.stride == 1 and copy.count == 1:
        lanes = updated(f, op, load_lanes(f, memory, address, f.mask), [value]).vectors
        assert lanes is not None
        store_lanes(f, memory, address, lanes)
    else:
        _lane_after_lane(f, copy, address, group)


def _into_element(f: LaneFrame, memory: GlobalMemory, address: Address, op: str, value: str) -> None:
    old = load_scalar(f, memory, address.pointer)
    store_scalar(f, memory, address.pointer, combine(f.scalar, op, memory.type.dtype, old, value))


def _into_all_lanes(f: LaneFrame, memory: GlobalMemory, address: Address, op: str, value: Atom) -> None:
    """Accumulates into one element for all lanes, whose copies of it are a vector."""
    d, here = memory.type.dtype, replace(memory, pointer=address.pointer)
    total = load_elements(f, f.vector, here, "0")
    for v in range(f.vectors):
        total = f.blend(f.mask, d, combine(f.vector, op, d, total, f.vector_of(value, v)), total, v)
    store_elements(f, f.vector, here, "0", total)


def _lane_after_lane(f: LaneFrame, copy: ChunkCopy, address: Address, group: UpdateGroup) -> None:
    """Accumulates lane after lane, all components of one. Inactive lanes update spare elements, without a branch."""
    text, memory, many = f.text, copy.memory, len(group.values)
    d, total = memory.type.dtype, f.width * f.vectors
    kind = MEMORY[d]
    places, values = text.slot(f"[{total} x i32]"), text.slot(f"[{total * many} x {kind}]")
    for v in range(f.vectors):
        text.do(f"store {f.lanes.of('i32')} {_elements(f, copy, address, v, many)}, ptr {_ahead(f, places, 'i32', v)}")
        raw = [to_memory(f.vector, d, f.vector_of(value, v)) for value in group.values]
        for k, record in enumerate(side_by_side(f, kind, raw)):
            text.do(f"store {f.lanes.of(kind)} {record}, ptr {_ahead(f, values, kind, v * many + k)}")
    places_named = sum(len(f.facts.effects.get(ref, ())) for ref in f.accumulators.copies)
    with text.counted("0", str(total), 1, max(1, UNROLL // places_named)) as lane:
        element = text.op(f"load i32, ptr {text.op(f'getelementptr i32, ptr {places}, i64 {lane}')}")
        given = text.op(f"getelementptr {f'[{many} x {kind}]' if many > 1 else kind}, ptr {values}, i64 {lane}")
        pointer = text.op(f"getelementptr {kind}, ptr {memory.pointer}, i32 {element}")
        if many > 1:
            update_components(f, memory, group.op, (pointer, given), many)
        else:
            raw_value = text.op(f"load {kind}, ptr {given}")
            _into_element(f, memory, Address(pointer, 0), group.op, from_memory(f.scalar, d, raw_value))


def _ahead(f: LaneFrame, pointer: str, kind: str, v: int) -> str:
    return f.text.op(f"getelementptr {f.lanes.of(kind)}, ptr {pointer}, i64 {v}") if v else pointer


def _elements(f: LaneFrame, copy: ChunkCopy, address: Address, v: int, many: int) -> str:
    """Returns the element numbers in the copy for vector v, of the first of so many components."""
    o, i32, memory = f.vector, f.lanes.of("i32"), copy.memory
    if address.offsets is not None:
        found = (
            o.cast("trunc", "i64", address.offsets[v], "i32") if address.offset_type == "i64" else address.offsets[v]
        )
    else:
        assert address.stride is not None
        found = f.lanes.range("i32", v * f.width * address.stride, address.stride)
    if address.pointer != memory.pointer:
        found = o.binary("add", i32, found, f.spread("i32", _first(f, memory, address)))
    if copy.count > 1:
        numbers = f.lanes.sequence("i32", [k % copy.count for k in range(f.width)])
        found = o.binary("add", i32, found, numbers)
    if f.mask.vectors is not None:
        spare = f.lanes.range("i32", memory.type.size, 1 if many == 1 else 0)
        found = o.select(f.mask.vectors[v], i32, found, spare)
    return found


def _first(f: LaneFrame, memory: GlobalMemory, address: Address) -> str:
    """Returns the number of the element at an address's pointer."""
    text, size = f.text, BYTES[MEMORY[memory.type.dtype]]

    def make() -> str:
        here, base = (text.op(f"ptrtoint ptr {p} to i64") for p in (address.pointer, memory.pointer))
        distance = text.op(f"sub i64 {here}, {base}")
        return text.op(f"trunc i64 {text.op(f'sdiv exact i64 {distance}, {size}')} to i32")

    return f.cached(("element of", memory.pointer, address.pointer), make)
