"""Private memory: cells and arrays of each lane on the stack, element by element, V vectors of W lanes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.addresses import first_element
from lowering.llvm.transfers import gather, scatter
from lowering.llvm.types import PRIVATE
from lowering.llvm.vectors import Lanes, Value
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType, RefType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom, Eqn


@dataclass(frozen=True, slots=True)
class Private:
    """Memory of each lane: element by element, V vectors of W lanes."""

    pointer: str
    type: RefType
    shared: bool
    """One copy for all lanes (made in the head of the task)."""


def allocate(f: Frame, eqn: Eqn, *, shared: bool) -> None:
    """`cell`: stack memory of the function, one copy for every lane."""
    out = eqn.outvars[0]
    assert isinstance(out.type, RefType)
    kind = PRIVATE[out.dtype]
    shared = shared or f.is_scalar
    size = max(1, out.type.size)
    slot = f"[{size} x {kind}]" if shared else f"[{size * f.vectors} x {f.lanes.of(kind)}]"
    f.privates[out] = Private(f.text.slot(slot), out.type, shared)


def _private_lanes(ref: Private, f: Frame) -> Lanes:
    return Lanes(1) if ref.shared else f.lanes


def _private_element(f: Frame, ref: Private, indices: Sequence[Atom], v: int) -> str:
    """Pointer to the vector of a uniform element."""
    kind = _private_lanes(ref, f).of(PRIVATE[ref.type.dtype])
    per = 1 if ref.shared else f.vectors
    form = f.facts.forms.address(ref.type, indices)
    if not form.terms:
        return f.text.op(f"getelementptr {kind}, ptr {ref.pointer}, i64 {form.constant * per + v}")
    element = first_element(f, form)
    scaled = f.text.op(f"mul i64 {element}, {per}") if per > 1 else element
    moved = f.text.op(f"add i64 {scaled}, {v}") if v else scaled
    return f.text.op(f"getelementptr {kind}, ptr {ref.pointer}, i64 {moved}")


def _private_pointers(f: Frame, ref: Private, indices: Sequence[Atom], v: int) -> str:
    """Pointers to each lane's copy of an element of its own."""
    o, i32 = f.vector, f.lanes.of("i32")
    total, stride = "", 1
    for index, size in zip(reversed(indices), reversed(ref.type.shape), strict=True):
        part = o.cast("trunc", "i64", f.vector_of(index, v), "i32") if index.dtype.bits == 64 else f.vector_of(index, v)
        part = o.binary("mul", i32, part, o.number("i32", stride * f.width * f.vectors))
        total = o.binary("add", i32, total, part) if total else part
        stride *= size
    total = o.binary("add", i32, total, f.steps("i32", v))
    return f.text.op(f"getelementptr {PRIVATE[ref.type.dtype]}, ptr {ref.pointer}, {i32} {total}")


def _is_fixed(f: Frame, indices: Sequence[Atom]) -> bool:
    return all(isinstance(i, Literal) or f.is_uniform(i) for i in indices)


def load_private(f: Frame, ref: Private, indices: Sequence[Atom]) -> Value:
    """Reads each lane's own element."""
    d = ref.type.dtype
    kind = PRIVATE[d]

    def register(o: Ops, raw: str) -> str:
        return o.cast("trunc", "i8", raw, "i1") if d is DType.bool else raw

    if ref.shared:
        pointer = _private_element(f, ref, indices, 0)
        return Value(d, scalar=register(f.scalar, f.text.op(f"load {kind}, ptr {pointer}")))
    if _is_fixed(f, indices):
        vector = f.lanes.of(kind)
        return f.each(
            d,
            lambda v: register(f.vector, f.text.op(f"load {vector}, ptr {_private_element(f, ref, indices, v)}")),
        )
    return f.each(
        d,
        lambda v: register(f.vector, gather(f, kind, _private_pointers(f, ref, indices, v), f.mask_of(f.mask, v), "")),
    )


def store_private(f: Frame, ref: Private, value: Value, indices: Sequence[Atom]) -> None:
    """Writes each active lane's own element."""
    d = ref.type.dtype
    kind = PRIVATE[d]
    if ref.shared:
        assert value.scalar is not None
        raw = f.scalar.cast("zext", "i1", value.scalar, "i8") if d is DType.bool else value.scalar
        f.text.do(f"store {kind} {raw}, ptr {_private_element(f, ref, indices, 0)}")
        return
    vector, o = f.lanes.of(kind), f.vector
    for v in range(f.vectors):
        spelled = f.lanes_of(value, v)
        raw = o.cast("zext", "i1", spelled, "i8") if d is DType.bool else spelled
        if not _is_fixed(f, indices):
            scatter(f, kind, raw, _private_pointers(f, ref, indices, v), f.mask_of(f.mask, v), "")
            continue
        pointer = _private_element(f, ref, indices, v)
        if f.mask.vectors is not None:
            old = f.text.op(f"load {vector}, ptr {pointer}")
            raw = o.select(f.mask.vectors[v], vector, raw, old)
        f.text.do(f"store {vector} {raw}, ptr {pointer}")
