"""Accumulation into elements that only one lane touches: read, combine, write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.combining import updated
from lowering.llvm.memory import load_scalar, store_scalar
from lowering.llvm.vectors import Value
from lowering.simd.memory import load_lanes, store_lanes

if TYPE_CHECKING:
    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.descriptions import Address
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom


def update_own(f: LaneFrame, memory: GlobalMemory, address: Address, op: str, value: Atom) -> None:
    """Accumulates the values of active lanes into elements that nobody else touches."""
    if f.is_scalar:
        old = Value(value.dtype, scalar=load_scalar(f, memory, address.pointer))
        new = updated(f, op, old, [value]).scalar
        assert new is not None
        store_scalar(f, memory, address.pointer, new)
        return
    new_lanes = updated(f, op, load_lanes(f, memory, address, f.mask), [value]).vectors
    assert new_lanes is not None
    store_lanes(f, memory, address, new_lanes)
