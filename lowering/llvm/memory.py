"""Loads and stores of shared memory: vectors where lanes touch neighbours, gathers and scatters elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import Global, Place, lane_pointers, locate
from lowering.llvm.conversions import from_bits, to_bits
from lowering.llvm.facts import reference
from lowering.llvm.interleave import load_component
from lowering.llvm.transfers import gather, load_vector, scatter_lanes, store_vector
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
    f.pending.settle(f, memory, place)
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
    d, kind = ref.type.dtype, MEMORY[ref.type.dtype]

    def one(v: int) -> str:
        lanes = None if mask.vectors is None else mask.vectors[v]
        if place.component is not None:
            raw = load_component(f, ref, place, mask, v)
        elif place.stride == 1:
            raw = load_vector(f, ref, place.pointer, v * f.width, lanes)
        else:
            raw = gather(f, kind, lane_pointers(f, place, kind, v), f.mask_of(mask, v), ref.alias)
        return from_memory(f.vector, d, raw)

    return f.each(d, one)


def store(f: Frame, eqn: Eqn) -> None:
    """`store`."""
    ref, value = reference(eqn), eqn.invars[1]
    memory = f.globals[ref]
    place = locate(f, memory, eqn.invars[2:])
    f.pending.settle(f, memory, place)
    uniform = isinstance(value, Literal) or f.is_uniform(value)
    if f.is_scalar or (place.stride == 0 and uniform):
        store_scalar(f, memory, place.pointer, f.scalar_of(value))
    else:
        store_lanes(f, memory, place, [f.vector_of(value, v) for v in range(f.vectors)])


def store_scalar(f: Frame, ref: Global, pointer: str, value: str) -> None:
    """One element."""
    kind = MEMORY[ref.type.dtype]
    raw = to_memory(f.scalar, ref.type.dtype, value)
    f.text.do(f"store {kind} {raw}, ptr {pointer}, align {BYTES[kind]}{ref.alias}")


def store_lanes(f: Frame, ref: Global, place: Place, values: list[str]) -> None:
    """One element an active lane."""
    raw = [to_memory(f.vector, ref.type.dtype, value) for value in values]
    if place.component is not None:
        f.pending.add(f, ref, place, raw)
    elif place.stride == 1:
        for v, vector in enumerate(raw):
            mask = None if f.mask.vectors is None else f.mask.vectors[v]
            store_vector(f, ref, place.pointer, v * f.width, vector, mask)
    else:
        scatter_lanes(f, ref, place, raw)
