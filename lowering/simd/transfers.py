"""Transfers of vectors between registers and memory, in memory types: contiguous, or one pointer per lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.types import BYTES, MEMORY
from lowering.simd.addresses import lane_pointers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.descriptions import Address, Mask
    from lowering.simd.frame import LaneFrame

WORD = 4
"""Bytes of the narrowest elements that processors gather and scatter."""


def load_vector(f: LaneFrame, ref: GlobalMemory, pointer: str, shift: int, mask: str | None) -> str:
    """Loads contiguous elements, `shift` elements after a pointer; inactive lanes get 0."""
    kind = MEMORY[ref.type.dtype]
    pointer = ahead(f, kind, pointer, shift)
    if mask is not None:
        return _masked_load(f, kind, pointer, mask, ref.alias)
    return f.text.op(f"load {f.lanes.of(kind)}, ptr {pointer}, align {BYTES[kind]}{ref.alias}{ref.invariant}")


def _masked_load(f: LaneFrame, kind: str, pointer: str, mask: str, metadata: str) -> str:
    """Loads contiguous elements of the active lanes."""
    vector, bits = f.lanes.of(kind), f.vector.bits
    symbol = f"llvm.masked.load.{f.lanes.suffix(kind)}.p0"
    f.text.module.declare(symbol, vector, f"ptr, i32, {bits}, {vector}")
    return f.text.op(
        f"call {vector} @{symbol}(ptr {pointer}, i32 {BYTES[kind]}, {bits} {mask}, {vector} zeroinitializer){metadata}"
    )


def _is_one_gather(f: LaneFrame, kind: str) -> bool:
    """Returns whether elements of a vector are gathered at once, and not lane by lane."""
    return (f.target.has_gathers and BYTES[kind] >= WORD) or f.alike


def gather(f: LaneFrame, kind: str, pointers: str, mask: str, metadata: str) -> str:
    """Loads elements at a vector of pointers, for the active lanes; inactive lanes get 0."""
    vector, bits, places = f.lanes.of(kind), f.vector.bits, f.lanes.of("ptr")
    if not _is_one_gather(f, kind):
        found = "poison"
        for k, pointer in enumerate(_lane_by_lane(f, pointers, mask, f.text.spare(cleared=True))):
            element = f.text.op(f"load {kind}, ptr {pointer}, align {BYTES[kind]}{metadata}")
            found = f.text.op(f"insertelement {vector} {found}, {kind} {element}, i32 {k}")
        return found
    symbol = f"llvm.masked.gather.{f.lanes.suffix(kind)}.{f.lanes.suffix('ptr')}"
    f.text.module.declare(symbol, vector, f"{places}, i32, {bits}, {vector}")
    return f.text.op(
        f"call {vector} @{symbol}({places} {pointers}, i32 {BYTES[kind]}, {bits} {mask}, "
        f"{vector} zeroinitializer){metadata}"
    )


def gather_lanes(f: LaneFrame, ref: GlobalMemory, address: Address, mask: Mask, v: int) -> str:
    """Loads an element for each active lane of a vector, at a constant stride or at offsets."""
    kind = MEMORY[ref.type.dtype]
    is_whole = mask.vectors is None and f.mask.vectors is None
    if address.offsets is None or not is_whole or _is_one_gather(f, kind):
        return gather(f, kind, lane_pointers(f, address, kind, v), f.mask_of(mask, v), ref.alias)
    # Components of a record have the same offsets: as numbers they are taken out of the vector once.
    found, offsets, type_ = "poison", address.offsets[v], address.offset_type
    for k in range(f.width):
        number = f.cached(
            ("offset", offsets, k), lambda k=k: f.text.op(f"extractelement {f.lanes.of(type_)} {offsets}, i32 {k}")
        )
        place = f.text.op(f"getelementptr {kind}, ptr {address.pointer}, {type_} {number}")
        element = f.text.op(f"load {kind}, ptr {place}, align {BYTES[kind]}{ref.alias}{ref.invariant}")
        found = f.text.op(f"insertelement {f.lanes.of(kind)} {found}, {kind} {element}, i32 {k}")
    return found


def scatter(f: LaneFrame, kind: str, value: str, pointers: str, mask: str, metadata: str) -> None:
    """Stores at a vector of pointers, in lane order, for the active lanes."""
    vector, bits, places = f.lanes.of(kind), f.vector.bits, f.lanes.of("ptr")
    if not (f.target.has_masks and BYTES[kind] >= WORD) and not f.alike:
        for k, pointer in enumerate(_lane_by_lane(f, pointers, mask, f.text.spare(cleared=False))):
            element = f.text.op(f"extractelement {vector} {value}, i32 {k}")
            f.text.do(f"store {kind} {element}, ptr {pointer}, align {BYTES[kind]}{metadata}")
        return
    symbol = f"llvm.masked.scatter.{f.lanes.suffix(kind)}.{f.lanes.suffix('ptr')}"
    f.text.module.declare(symbol, "void", f"{vector}, {places}, i32, {bits}")
    f.text.do(f"call void @{symbol}({vector} {value}, {places} {pointers}, i32 {BYTES[kind]}, {bits} {mask}){metadata}")


def _lane_by_lane(f: LaneFrame, pointers: str, mask: str, nowhere: str) -> list[str]:
    """Returns a pointer for each lane; those of inactive lanes point to `nowhere`, a slot of the function.

    LLVM makes a branch for each lane of a masked access that the processor does not have, which costs more unless
    lanes are alike.
    """
    places = f.lanes.of("ptr")
    if f.mask.vectors is not None:
        pointers = f.vector.select(mask, places, pointers, f.spread("ptr", nowhere))
    return [f.text.op(f"extractelement {places} {pointers}, i32 {k}") for k in range(f.width)]


def kept_apart(f: LaneFrame, type_: str, register: str) -> str:
    """Returns a register of which, with a choice of lanes and a store, LLVM makes no masked store.

    It would do so on processors without masks, too, which run one as microcode, some 20 times as long as a plain store.
    """
    return register if f.target.has_masks else f.text.op(f"freeze {type_} {register}")


def store_vector(f: LaneFrame, ref: GlobalMemory, pointer: str, shift: int, raw: str, mask: str | None) -> None:
    """Stores contiguous elements, `shift` elements after a pointer, for the active lanes."""
    kind = MEMORY[ref.type.dtype]
    vector, size, bits = f.lanes.of(kind), BYTES[kind], f.vector.bits
    pointer = ahead(f, kind, pointer, shift)
    if mask is None:
        f.text.do(f"store {vector} {raw}, ptr {pointer}, align {size}{ref.alias}")
        return
    symbol = f"llvm.masked.store.{f.lanes.suffix(kind)}.p0"
    f.text.module.declare(symbol, "void", f"{vector}, ptr, i32, {bits}")
    f.text.do(f"call void @{symbol}({vector} {raw}, ptr {pointer}, i32 {size}, {bits} {mask}){ref.alias}")


def store_vectors(f: LaneFrame, ref: GlobalMemory, pointer: str, parts: Sequence[tuple[int, str, str | None]]) -> None:
    """Stores vectors of contiguous elements, each with its distance from a pointer and its mask.

    A step that has all its lanes stores them without masks, where that is known when it runs.
    """
    text, whole = f.text, f.mask.whole
    if whole is None:
        for shift, raw, mask in parts:
            store_vector(f, ref, pointer, shift, raw, mask)
        return
    plain, masked, done = (text.fresh_label(hint) for hint in ("plain", "masked", "stored"))
    text.branch(whole, plain, masked)
    for label in (plain, masked):
        text.begin(label)
        for shift, raw, mask in parts:
            store_vector(f, ref, pointer, shift, raw, mask if label == masked else None)
        text.jump(done)
    text.begin(done)


def scatter_lanes(f: LaneFrame, ref: GlobalMemory, address: Address, raw: list[str]) -> None:
    """Stores the active lanes' elements at a constant stride or at offsets."""
    kind = MEMORY[ref.type.dtype]
    for v, vector in enumerate(raw):
        scatter(f, kind, vector, lane_pointers(f, address, kind, v), f.mask_of(f.mask, v), ref.alias)
