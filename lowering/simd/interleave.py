"""Arrays of small records: accesses whose lanes read or write one component of neighbouring records.

An access with a small stride moves whole records by contiguous vectors and shuffles, instead of one element per lane.
Stores wait until all components of the records are there; incomplete groups are scattered.

Of long records pieces are moved, one vector a lane, which shuffles turn into a vector a component, or back. Where some
lanes are inactive, the pieces of the others are copied.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.types import BYTES, MEMORY
from lowering.llvm.vectors import Lanes
from lowering.simd.accumulation.lanes import each_active
from lowering.simd.addresses import record_of
from lowering.simd.records import Step, Touch, group_stores
from lowering.simd.transfers import gather_lanes, load_vector, scatter_lanes, store_vectors
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, ATOMIC, LOAD, STORE
from qdtrace.ir.program import Eqn, ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.descriptions import Address, Component, Mask
    from lowering.simd.frame import LaneFrame

PIECE_USE = 0.5
"""Least fraction of a piece that a block reads for all of it to be loaded."""


def pick(f: LaneFrame, kind: str, sources: Sequence[str], wanted: Sequence[int]) -> str:
    """Returns a vector whose lane l is element `wanted[l]` of the concatenated sources.

    Each pair of sources is shuffled into the wanted lanes; then the pairs are blended.
    """
    width, type_ = f.width, f.lanes.of(kind)

    def shuffle(a: str, b: str, lanes: Sequence[int | None]) -> str:
        order = f.lanes.sequence("i32", ["poison" if k is None else k for k in lanes])
        return f.text.op(f"shufflevector {type_} {a}, {type_} {b}, {f.lanes.of('i32')} {order}")

    total = ""
    for first in range(0, len(sources), 2):
        low, high = first * width, min(first + 2, len(sources)) * width
        pair = sources[first], sources[min(first + 1, len(sources) - 1)]
        part = shuffle(*pair, [k - low if low <= k < high else None for k in wanted])
        total = shuffle(total, part, [n + width * (k >= low) for n, k in enumerate(wanted)]) if total else part
    return total


def _masks(f: LaneFrame, mask: str, stride: int) -> list[str]:
    """Returns the mask of records as masks of their elements, vector by vector."""
    width = f.width

    def make(k: int) -> str:
        order = f.lanes.sequence("i32", [(k * width + n) // stride for n in range(width)])
        return f.text.op(f"shufflevector {f.vector.bits} {mask}, {f.vector.bits} poison, {f.lanes.of('i32')} {order}")

    return [f.cached(("records", mask, stride, k), lambda k=k: make(k)) for k in range(stride)]


def load_component(f: LaneFrame, ref: GlobalMemory, address: Address, mask: Mask, v: int) -> str:
    """Loads one component of the records of vector v, in its type in memory."""
    assert address.stride is not None
    assert address.record is not None
    if address.record.size != address.stride:
        assert mask is f.mask
        return _load_piece(f, ref, address, address.record, v)
    stride, width, number = address.stride, f.width, address.record.number
    first = v * width * stride - number
    masks = [None] * stride if mask.vectors is None else _masks(f, mask.vectors[v], stride)

    def load(k: int) -> str:
        return load_vector(f, ref, address.pointer, first + k * width, masks[k])

    if ref.invariant:
        # the task never writes it, so the other components may use the same vectors
        key = ("record", ref.pointer, address.record.first, stride, mask.vectors, v)
        parts = [f.cached((*key, k), lambda k=k: load(k)) for k in range(stride)]
    else:
        parts = [load(k) for k in range(stride)]
    return pick(f, MEMORY[ref.type.dtype], parts, [number + stride * n for n in range(width)])


def plan_stores(f: LaneFrame, eqns: Sequence[Eqn]) -> list[Step]:
    """Returns the actions on groups of stores at consecutive equations, and at their end."""
    if f.is_scalar or not any(e.primitive in (STORE, ACCUM) for e in eqns):
        return [Step()] * (len(eqns) + 1)
    return group_stores(_touch(f, eqn) for eqn in eqns)


def _touch(f: LaneFrame, eqn: Eqn) -> Touch | None:
    prim = eqn.primitive
    if eqn.primitive.values is None:
        return Touch(None) if eqn.blocks else None
    ref, indices = reference(eqn), indices_of(eqn)
    if ref not in f.globals:
        return None
    if prim is ACCUM and ref not in f.facts.exclusive_accums:
        return None if ref in f.facts.accumulated else Touch(ref)
    component = None if prim is ATOMIC else record_of(f, ref_type(ref), indices)
    return Touch(ref, component, stores=prim is not LOAD)


def settle_stores(f: LaneFrame) -> None:
    """Writes incomplete groups that must be in memory before the current equation."""
    for group in f.step.written:
        for address, raw in f.waiting.pop(group).values():
            scatter_lanes(f, f.globals[group.ref], address, raw)


def add_store(f: LaneFrame, ref: GlobalMemory, address: Address, raw: list[str]) -> None:
    """Adds the store of the current equation, to one component, to its group; `raw` has the type in memory."""
    group = f.step.joined
    assert group is not None
    assert address.record is not None
    stores = f.waiting.setdefault(group, {})
    stores[address.record.number] = (address, raw)
    if len(stores) == address.record.size:
        made = f.waiting.pop(group)
        (_write_records if address.record.size == address.stride else _write_pieces)(f, ref, made)


def _load_piece(f: LaneFrame, ref: GlobalMemory, address: Address, record: Component, v: int) -> str:
    """Loads one component of the pieces of vector v; with them the others, if the block reads many of them."""
    size, key = record.size, ("piece", ref.pointer, record.first, record.size, f.mask.vectors, v)
    if not ref.invariant or f.pieces[ref.pointer, record.first, size] < size * PIECE_USE:
        return gather_lanes(f, ref, address, f.mask, v)
    if not f.has_cached((*key, record.number)):
        rows = _Rows(f, ref, address, record, v)
        rows.copy(back=False)
        loaded = [f.text.op(f"load {rows.type}, ptr {place}, {rows.how}") for place in rows.places()]
        square = [_joined(f, rows.kind, loaded[r::size], size) for r in range(size)]
        for c, register in enumerate(transposed(f, f.lanes.of(rows.kind), square)):
            f.remember((*key, c), register)
    return f.cached((*key, record.number), str)


class _Rows:
    """The pieces of the lanes of a vector, one after another: in the array, or copies of those of the active lanes."""

    def __init__(self, f: LaneFrame, ref: GlobalMemory, address: Address, record: Component, v: int) -> None:
        assert address.stride is not None
        self.f, self.v, self.kind, self.size, self.stride = f, v, MEMORY[ref.type.dtype], record.size, address.stride
        self.type = Lanes(record.size).of(self.kind)
        self.how = f"align {BYTES[self.kind]}"
        self.array = ahead(f, self.kind, address.pointer, v * f.width * address.stride - record.number)
        self.whole = self.copies = ""
        if f.mask.vectors is None:
            self.how += ref.alias
            return
        text, bits = f.text, f"i{f.width}"
        number = text.op(f"bitcast {f.vector.bits} {f.mask.vectors[v]} to {bits}")
        self.whole = text.op(f"icmp eq {bits} {number}, -1")
        self.copies = text.cleared(self.type, f.width)

    def places(self) -> list[str]:
        """Returns the address of each lane's piece."""
        f, text = self.f, self.f.text
        if not self.whole:
            return [ahead(f, self.kind, self.array, lane * self.stride) for lane in range(f.width)]
        found = [text.op(f"select i1 {self.whole}, ptr {self.array}, ptr {self.copies}")]
        distance = text.op(f"select i1 {self.whole}, i64 {self.stride}, i64 {self.size}")
        while len(found) < f.width:
            found.append(text.op(f"getelementptr {self.kind}, ptr {found[-1]}, i64 {distance}"))
        return found

    def copy(self, *, back: bool) -> None:
        """Copies the pieces of the active lanes out of the array or `back`, unless all lanes are active."""
        if not self.whole:
            return
        text = self.f.text
        some, done = text.fresh_label("some"), text.fresh_label("moved")
        text.branch(self.whole, done, some)
        text.begin(some)
        with each_active(self.f, self.v) as lane:
            distances = [text.op(f"mul i64 {lane}, {n}") for n in (self.stride, self.size)]
            ends = [
                text.op(f"getelementptr {self.kind}, ptr {base}, i64 {at}")
                for base, at in zip((self.array, self.copies), distances, strict=True)
            ]
            source, target = reversed(ends) if back else ends
            text.do(
                f"store {self.type} {text.op(f'load {self.type}, ptr {source}, {self.how}')}, ptr {target}, {self.how}"
            )
        text.jump(done)
        text.begin(done)


def _joined(f: LaneFrame, kind: str, parts: list[str], size: int) -> str:
    """Returns parts of `size` elements each as one vector."""
    while len(parts) > 1:
        row, order = Lanes(size).of(kind), Lanes(2 * size).range("i32")
        both = [f"{row} {a}, {row} {b}" for a, b in zip(parts[::2], parts[1::2], strict=True)]
        parts = [f.text.op(f"shufflevector {pair}, {Lanes(2 * size).of('i32')} {order}") for pair in both]
        size *= 2
    return parts[0]


def transposed(f: LaneFrame, kind: str, square: list[str]) -> list[str]:
    """Returns the columns of squares of numbers, side by side in vectors; each step swaps the halves of blocks."""
    width, i32 = f.width, f.lanes.of("i32")
    half = len(square) // 2
    while half:
        lower = [c if not c & half else width + c - half for c in range(width)]
        upper = [c + half if not c & half else width + c for c in range(width)]
        made = list(square)
        for k in range(len(square)):
            if not k & half:
                pair = f"{kind} {square[k]}, {kind} {square[k + half]}"
                for place, order in ((k, lower), (k + half, upper)):
                    made[place] = f.text.op(f"shufflevector {pair}, {i32} {f.lanes.sequence('i32', order)}")
        square, half = made, half // 2
    return square


def count_pieces(f: LaneFrame, eqns: Sequence[Eqn]) -> Counter[object]:
    """Counts the components of each piece of a long record that a block reads."""
    found: set[tuple[str, Component]] = set()
    for eqn in () if f.is_scalar or f.split else eqns:
        if eqn.primitive is LOAD and (ref := reference(eqn)) in f.globals and f.globals[ref].invariant:
            component = record_of(f, ref_type(ref), indices_of(eqn))
            if component is not None:
                found.add((f.globals[ref].pointer, component))
    return Counter((pointer, c.first, c.size) for pointer, c in found)


def _write_pieces(f: LaneFrame, ref: GlobalMemory, stores: dict[int, tuple[Address, list[str]]]) -> None:
    """Stores the pieces of all lanes, each as one vector."""
    size, (address, _) = len(stores), stores[0]
    assert address.record is not None
    for v in range(f.vectors):
        rows = _Rows(f, ref, address, address.record, v)
        kind = f.lanes.of(rows.kind)
        columns = transposed(f, kind, [stores[c][1][v] for c in range(size)])
        for lane, place in enumerate(rows.places()):
            part, at = columns[lane % size], lane // size * size
            if size < f.width:
                order = f"{Lanes(size).of('i32')} {Lanes(size).range('i32', at)}"
                part = f.text.op(f"shufflevector {kind} {part}, {kind} poison, {order}")
            f.text.do(f"store {rows.type} {part}, ptr {place}, {rows.how}")
        rows.copy(back=True)


def _write_records(f: LaneFrame, ref: GlobalMemory, stores: dict[int, tuple[Address, list[str]]]) -> None:
    number, (address, _) = next(iter(stores.items()))
    kind, stride, width = MEMORY[ref.type.dtype], len(stores), f.width
    parts: list[tuple[int, str, str | None]] = []
    for v in range(f.vectors):
        sources = [stores[c][1][v] for c in range(stride)]
        masks = _masks(f, f.mask.vectors[v], stride) if f.mask.vectors is not None else [None] * stride
        for k in range(stride):
            wanted = [e % stride * width + e // stride for e in range(k * width, (k + 1) * width)]
            shift = v * width * stride - number + k * width
            parts.append((shift, pick(f, kind, sources, wanted), masks[k]))
    store_vectors(f, ref, address.pointer, parts)
