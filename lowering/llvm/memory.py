"""Loads and stores of shared memory: vectors where lanes touch neighbours, gathers and scatters elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import Global, Place, ahead, lane_pointers, locate
from lowering.llvm.conversions import from_bits, to_bits
from lowering.llvm.facts import reference
from lowering.llvm.types import BYTES, MEMORY, SMALL_FLOATS
from lowering.llvm.vectors import Mask, Value
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Eqn


def from_memory(o: Ops, dtype: DType, raw: str) -> str:
    """A value as it is in registers."""
    if dtype is DType.bool:
        return o.compare("icmp ne", o.vector("i8"), raw, o.number("i8", 0))
    return from_bits(o, dtype, raw) if dtype in SMALL_FLOATS else raw


def to_memory(o: Ops, dtype: DType, value: str) -> str:
    """A value as it is in memory."""
    if dtype is DType.bool:
        return o.cast("zext", "i1", value, "i8")
    return to_bits(o, dtype, value) if dtype in SMALL_FLOATS else value


def load(f: Frame, eqn: Eqn) -> None:
    """`load`."""
    ref, out = reference(eqn), eqn.outvars[0]
    memory = f.globals[ref]
    place = locate(f, memory, eqn.invars[1:])
    if place.stride == 0 or f.is_scalar:
        f.env[out] = Value(out.dtype, scalar=load_scalar(f, memory, place.pointer))
    else:
        f.env[out] = load_lanes(f, memory, place, f.mask)


def load_scalar(f: Frame, ref: Global, pointer: str) -> str:
    """One element."""
    kind = MEMORY[ref.type.dtype]
    raw = f.text.op(f"load {kind}, ptr {pointer}, align {BYTES[kind]}{ref.alias}{ref.invariant}")
    return from_memory(f.scalar, ref.type.dtype, raw)


def load_lanes(f: Frame, ref: Global, place: Place, mask: Mask) -> Value:
    """One element a lane; 0 in lanes that are not active."""
    d, o = ref.type.dtype, f.vector
    kind = MEMORY[d]
    vector, size = f.lanes.of(kind), BYTES[kind]

    def one(v: int) -> str:
        if place.stride == 1:
            pointer = ahead(f, kind, place.pointer, v * f.width)
            if mask.vectors is None:
                raw = f.text.op(f"load {vector}, ptr {pointer}, align {size}{ref.alias}{ref.invariant}")
            else:
                raw = masked_load(f, kind, pointer, mask.vectors[v], ref.alias)
        else:
            raw = gather(f, kind, lane_pointers(f, place, kind, v), f.mask_of(mask, v), ref.alias)
        return from_memory(o, d, raw)

    return f.each(d, one)


def masked_load(f: Frame, kind: str, pointer: str, mask: str, metadata: str) -> str:
    """Neighbouring elements of the active lanes."""
    vector, bits = f.lanes.of(kind), f.vector.bits
    symbol = f"llvm.masked.load.{f.lanes.suffix(kind)}.p0"
    f.text.module.declare(symbol, vector, f"ptr, i32, {bits}, {vector}")
    return f.text.op(
        f"call {vector} @{symbol}(ptr {pointer}, i32 {BYTES[kind]}, {bits} {mask}, {vector} zeroinitializer){metadata}"
    )


def gather(f: Frame, kind: str, pointers: str, mask: str, metadata: str) -> str:
    """Elements at a vector of pointers, for the active lanes."""
    vector, bits, places = f.lanes.of(kind), f.vector.bits, f.lanes.of("ptr")
    symbol = f"llvm.masked.gather.{f.lanes.suffix(kind)}.{f.lanes.suffix('ptr')}"
    f.text.module.declare(symbol, vector, f"{places}, i32, {bits}, {vector}")
    return f.text.op(
        f"call {vector} @{symbol}({places} {pointers}, i32 {BYTES[kind]}, {bits} {mask}, "
        f"{vector} zeroinitializer){metadata}"
    )


def scatter(f: Frame, kind: str, value: str, pointers: str, mask: str, metadata: str) -> None:
    """Stores at a vector of pointers, in lane order, for the active lanes."""
    vector, bits, places = f.lanes.of(kind), f.vector.bits, f.lanes.of("ptr")
    symbol = f"llvm.masked.scatter.{f.lanes.suffix(kind)}.{f.lanes.suffix('ptr')}"
    f.text.module.declare(symbol, "void", f"{vector}, {places}, i32, {bits}")
    f.text.do(f"call void @{symbol}({vector} {value}, {places} {pointers}, i32 {BYTES[kind]}, {bits} {mask}){metadata}")


def store(f: Frame, eqn: Eqn) -> None:
    """`store`."""
    ref, value = reference(eqn), eqn.invars[1]
    memory = f.globals[ref]
    place = locate(f, memory, eqn.invars[2:])
    uniform = isinstance(value, Literal) or f.is_uniform(value)
    if f.is_scalar or (place.stride == 0 and uniform):
        store_scalar(f, memory, place.pointer, f.scalar_of(value))
    else:
        store_lanes(f, memory, place, [f.vector_of(value, v) for v in range(f.vectors)], f.mask)


def store_scalar(f: Frame, ref: Global, pointer: str, value: str) -> None:
    """One element."""
    kind = MEMORY[ref.type.dtype]
    raw = to_memory(f.scalar, ref.type.dtype, value)
    f.text.do(f"store {kind} {raw}, ptr {pointer}, align {BYTES[kind]}{ref.alias}")


def store_lanes(f: Frame, ref: Global, place: Place, values: list[str], mask: Mask) -> None:
    """One element an active lane."""
    d, o = ref.type.dtype, f.vector
    kind = MEMORY[d]
    vector, size, bits = f.lanes.of(kind), BYTES[kind], f.vector.bits
    for v, value in enumerate(values):
        raw = to_memory(o, d, value)
        if place.stride != 1:
            scatter(f, kind, raw, lane_pointers(f, place, kind, v), f.mask_of(mask, v), ref.alias)
            continue
        pointer = ahead(f, kind, place.pointer, v * f.width)
        if mask.vectors is None:
            f.text.do(f"store {vector} {raw}, ptr {pointer}, align {size}{ref.alias}")
        else:
            symbol = f"llvm.masked.store.{f.lanes.suffix(kind)}.p0"
            f.text.module.declare(symbol, "void", f"{vector}, ptr, i32, {bits}")
            f.text.do(
                f"call void @{symbol}({vector} {raw}, ptr {pointer}, i32 {size}, {bits} {mask.vectors[v]}){ref.alias}"
            )
