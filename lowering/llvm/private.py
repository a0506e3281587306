"""Private memory: cells and arrays, one copy for all lanes of the function."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import first_element
from lowering.llvm.descriptions import PrivateMemory
from lowering.llvm.types import PRIVATE, kept_bytes
from lowering.llvm.vectors import Value
from qdtrace.ir.program import ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom, Eqn


def allocate(f: Frame, eqn: Eqn) -> None:
    """Emits `cell` as memory of the function."""
    out = eqn.outvars[0]
    slot = f.text.array(f"[{max(1, ref_type(out).size)} x {PRIVATE[out.dtype]}]", kept_bytes(ref_type(out)))
    f.privates[out] = PrivateMemory(slot, ref_type(out), shared=True)


def _pointer(f: Frame, ref: PrivateMemory, indices: Sequence[Atom]) -> str:
    kind, form = PRIVATE[ref.type.dtype], f.facts.forms.address(ref.type, indices)
    element = first_element(f, form, ref.type.size)
    if ref.stride > 1:
        element = f.text.op(f"mul i64 {element}, {ref.stride}")
    return f.text.op(f"getelementptr {kind}, ptr {ref.pointer}, i64 {element}")


def from_private(o: Ops, dtype: DType, raw: str) -> str:
    """Converts a value from its type in private memory to its type in registers."""
    return o.cast("trunc", "i8", raw, "i1") if dtype is DType.bool else raw


def to_private(o: Ops, dtype: DType, value: str) -> str:
    """Converts a value from its type in registers to its type in private memory."""
    return o.cast("zext", "i1", value, "i8") if dtype is DType.bool else value


def load_private(f: Frame, ref: PrivateMemory, indices: Sequence[Atom]) -> Value:
    """Loads an element of private memory."""
    d = ref.type.dtype
    raw = f.text.op(f"load {PRIVATE[d]}, ptr {_pointer(f, ref, indices)}")
    return Value(d, scalar=from_private(f.scalar, d, raw))


def store_private(f: Frame, ref: PrivateMemory, value: Value, indices: Sequence[Atom]) -> None:
    """Stores an element of private memory."""
    d = ref.type.dtype
    assert value.scalar is not None
    raw = to_private(f.scalar, d, value.scalar)
    f.text.do(f"store {PRIVATE[d]} {raw}, ptr {_pointer(f, ref, indices)}")
