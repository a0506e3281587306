"""Loads and stores of lanes: vectors for neighbouring elements, gathers and scatters for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.memory import from_memory, load_scalar, store_scalar, to_memory
from lowering.llvm.types import MEMORY
from lowering.llvm.vectors import Value
from lowering.simd.addresses import locate
from lowering.simd.consecutive import load_or_gather, mostly_consecutive, rises_by_one
from lowering.simd.interleave import add_store, load_component, settle_stores
from lowering.simd.private import load_private, store_private
from lowering.simd.transfers import gather_lanes, kept_apart, load_vector, scatter_lanes, store_vectors
from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import SELECT
from qdtrace.ir.program import Eqn, Literal, Var

if TYPE_CHECKING:
    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.descriptions import Address, Mask
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom


def load(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `load`: scalar, contiguous, of records, or a gather."""
    ref, out = reference(eqn), eqn.outvars[0]
    if ref in f.privates:
        f.env[out] = load_private(f, f.privates[ref], eqn.invars[1:])
        return
    memory = f.source(ref)
    address = locate(f, memory, eqn.invars[1:])
    settle_stores(f)
    if address.stride == 0:
        f.env[out] = Value(out.dtype, scalar=load_scalar(f, memory, address.pointer))
    else:
        consecutive = address.offsets is not None and mostly_consecutive(f, eqn.invars[1:])
        f.env[out] = (
            _load_near(f, memory, address, eqn.invars[-1])
            if consecutive
            else load_lanes(f, memory, address, f.mask)
        )


def _load_near(f: LaneFrame, ref: GlobalMemory, address: Address, index: Atom) -> Value:
    """Loads one element per lane, at offsets that are consecutive except perhaps at borders (`consecutive`)."""
    kind, mask = MEMORY[ref.type.dtype], f.mask
    assert address.offsets is not None

    def contiguous(pointer: str, distance: int, v: int) -> str:
        return load_vector(f, ref, pointer, distance, None if mask.vectors is None else mask.vectors[v])

    def gathered(v: int) -> str:
        return gather_lanes(f, ref, address, mask, v)

    raws = load_or_gather(f, kind, address, contiguous, gathered, rising=index if rises_by_one(f, index) else None)
    return Value(ref.type.dtype, vectors=[from_memory(f.vector, ref.type.dtype, raw) for raw in raws])


def load_lanes(f: LaneFrame, ref: GlobalMemory, address: Address, mask: Mask) -> Value:
    """Loads one element per lane; inactive lanes get 0."""
    d = ref.type.dtype

    def one(v: int) -> str:
        lanes = None if mask.vectors is None else mask.vectors[v]
        if address.record is not None:
            raw = load_component(f, ref, address, mask, v)
        elif address.stride == 1:
            raw = load_vector(f, ref, address.pointer, v * f.width, lanes)
        else:
            raw = gather_lanes(f, ref, address, mask, v)
        return from_memory(f.vector, d, raw)

    return f.each(d, one)


def store(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `store`: scalar, contiguous, of records, or a scatter."""
    ref, value = reference(eqn), eqn.invars[1]
    if ref in f.privates:
        store_private(f, f.privates[ref], _stored(f, value), eqn.invars[2:])
        return
    memory = f.globals[ref]
    address = locate(f, memory, eqn.invars[2:])
    settle_stores(f)
    uniform = isinstance(value, Literal) or f.is_uniform(value)
    if address.stride == 0 and uniform:
        store_scalar(f, memory, address.pointer, f.scalar_of(value))
    else:
        store_lanes(f, memory, address, [f.lanes_of(_stored(f, value), v) for v in range(f.vectors)])


def _stored(f: LaneFrame, atom: Atom) -> Value:
    """Returns the value to be stored, kept apart from its store if it may be a choice of new and old elements."""
    value = f.value(atom)
    chosen = f.facts.definitions.get(atom) if isinstance(atom, Var) else None
    if value.vectors is None or chosen is None or chosen.primitive is not SELECT:
        return value
    kind = f.vector.type(value.dtype)
    return f.each(value.dtype, lambda v: kept_apart(f, kind, f.lanes_of(value, v)))


def store_lanes(f: LaneFrame, ref: GlobalMemory, address: Address, values: list[str]) -> None:
    """Stores one element per active lane."""
    raw = [to_memory(f.vector, ref.type.dtype, value) for value in values]
    if address.record is not None:
        add_store(f, ref, address, raw)
    elif address.stride == 1:
        masks = f.mask.vectors or (None,) * f.vectors
        store_vectors(f, ref, address.pointer, [(v * f.width, raw[v], masks[v]) for v in range(f.vectors)])
    else:
        scatter_lanes(f, ref, address, raw)
