"""Loops over the elements of arrays: by vectors, then one by one for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.combining import combine
from lowering.llvm.memory import from_memory, to_memory
from lowering.llvm.types import BYTES, MEMORY
from qdtrace.ir.combining import identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.ops import Ops
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.types import DType


def for_elements(f: LaneFrame, size: int, make: Callable[[Ops, str], None]) -> None:
    """Emits `make(ops, k)` over elements 0 .. size-1; it handles as many elements from k on as `ops` has lanes."""
    whole = size // f.width * f.width
    if whole:
        with f.text.counted("0", str(whole), f.width) as k, f.region():
            make(f.vector, k)
    if whole < size:
        with f.text.counted(str(whole), str(size), 1) as k, f.region():
            make(f.scalar, k)


def load_elements(f: LaneFrame, o: Ops, ref: GlobalMemory, k: str) -> str:
    """Loads elements from number k on, one per lane of `o`."""
    d = ref.type.dtype
    kind = MEMORY[d]
    raw = f.text.op(f"load {o.vector(kind)}, ptr {_element(f, ref, k)}, align {BYTES[kind]}{ref.alias}")
    return from_memory(o, d, raw)


def store_elements(f: LaneFrame, o: Ops, ref: GlobalMemory, k: str, value: str) -> None:
    """Stores elements from number k on, one per lane of `o`."""
    kind = MEMORY[ref.type.dtype]
    raw = to_memory(o, ref.type.dtype, value)
    f.text.do(f"store {o.vector(kind)} {raw}, ptr {_element(f, ref, k)}, align {BYTES[kind]}{ref.alias}")


def _element(f: LaneFrame, ref: GlobalMemory, k: str) -> str:
    return f.text.op(f"getelementptr {MEMORY[ref.type.dtype]}, ptr {ref.pointer}, i64 {k}")


def clear_elements(f: LaneFrame, ref: GlobalMemory, size: int, op: str) -> None:
    """Stores the identity of the operation into elements 0 .. size-1."""
    d = ref.type.dtype
    for_elements(f, size, lambda o, k: store_elements(f, o, ref, k, o.constant(identity(op, d).value, d)))


def merge_elements(f: LaneFrame, o: Ops, op: str, d: DType, into: GlobalMemory, more: GlobalMemory, k: str) -> None:
    """Accumulates elements from number k on of one array into those of another."""
    total = combine(o, op, d, load_elements(f, o, into, k), load_elements(f, o, more, k))
    store_elements(f, o, into, k, total)
