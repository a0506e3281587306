"""Loads and stores of one element, in global or private memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import element_pointer
from lowering.llvm.conversions import from_bits, to_bits
from lowering.llvm.private import load_private, store_private
from lowering.llvm.types import BYTES, MEMORY, SMALL_FLOATS
from lowering.llvm.vectors import Value
from qdtrace.ir.memory import reference
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Eqn


def from_memory(o: Ops, dtype: DType, raw: str) -> str:
    """Converts a value from its type in memory to its type in registers."""
    if dtype is DType.bool:
        return o.compare("icmp ne", o.vector("i8"), raw, o.number("i8", 0))
    return from_bits(o, dtype, raw) if dtype in SMALL_FLOATS else raw


def to_memory(o: Ops, dtype: DType, value: str) -> str:
    """Converts a value from its type in registers to its type in memory."""
    if dtype is DType.bool:
        return o.cast("zext", "i1", value, "i8")
    return to_bits(o, dtype, value) if dtype in SMALL_FLOATS else value


def load(f: Frame, eqn: Eqn) -> None:
    """Emits `load` of an element at uniform indices."""
    ref, out, indices = reference(eqn), eqn.outvars[0], eqn.invars[1:]
    if ref in f.privates:
        f.env[out] = load_private(f, f.privates[ref], indices)
    else:
        memory = f.source(ref)
        pointer, align = element_pointer(f, memory, indices), f.alignment(memory, indices)
        f.env[out] = Value(out.dtype, scalar=load_scalar(f, memory, pointer, align))


def store(f: Frame, eqn: Eqn) -> None:
    """Emits `store` of a uniform value to an element at uniform indices."""
    ref, value, indices = reference(eqn), eqn.invars[1], eqn.invars[2:]
    if ref in f.privates:
        store_private(f, f.privates[ref], f.value(value), indices)
    else:
        memory = f.globals[ref]
        pointer, align = element_pointer(f, memory, indices), f.alignment(memory, indices)
        store_scalar(f, memory, pointer, f.scalar_of(value), align)


def load_scalar(f: Frame, ref: GlobalMemory, pointer: str, align: int = 0) -> str:
    """Loads one element; `align` is the pointer's alignment if it exceeds the element's."""
    kind = MEMORY[ref.type.dtype]
    raw = f.text.op(f"load {kind}, ptr {pointer}, align {align or BYTES[kind]}{ref.alias}{ref.invariant}")
    return from_memory(f.scalar, ref.type.dtype, raw)


def store_scalar(f: Frame, ref: GlobalMemory, pointer: str, value: str, align: int = 0) -> None:
    """Stores one element; `align` is the pointer's alignment if it exceeds the element's."""
    kind = MEMORY[ref.type.dtype]
    raw = to_memory(f.scalar, ref.type.dtype, value)
    f.text.do(f"store {kind} {raw}, ptr {pointer}, align {align or BYTES[kind]}{ref.alias}")
