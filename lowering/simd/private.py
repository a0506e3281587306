"""Private memory of lanes: cells and arrays with V vectors of W lanes for each element."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm import private
from lowering.llvm.addresses import MODULAR, ahead, first_element
from lowering.llvm.descriptions import PrivateMemory
from lowering.llvm.types import PRIVATE, kept_bytes
from lowering.simd.transfers import gather, kept_apart, scatter
from qdtrace.analysis.index.affine import Form
from qdtrace.ir.program import Literal, ref_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.vectors import Value
    from lowering.simd.frame import LaneFrame
    from qdtrace.ir.program import Atom, Eqn


def allocate(f: LaneFrame, eqn: Eqn) -> None:
    """Emits `cell`: memory of the function, one copy for every lane."""
    out = eqn.outvars[0]
    size = max(1, ref_type(out).size) * f.vectors
    kind = f"[{size} x {f.lanes.of(PRIVATE[out.dtype])}]"
    slot = f.text.array(kind, kept_bytes(ref_type(out)) * f.width * f.vectors)
    f.privates[out] = PrivateMemory(slot, ref_type(out), shared=False)


def _element(f: LaneFrame, ref: PrivateMemory, indices: Sequence[Atom], v: int) -> str:
    """Returns a pointer to vector v of an element at uniform indices."""
    kind, form = PRIVATE[ref.type.dtype], f.facts.forms.address(ref.type, indices)
    base, after = form, 0
    if not form.terms:
        after = int(first_element(f, form, ref.type.size))
    elif abs(form.constant) + ref.type.size < MODULAR:
        base, after = Form(form.terms), form.constant

    def make() -> str:
        element = first_element(f, base, ref.type.size)
        scaled = f.text.op(f"mul i64 {element}, {f.vectors}") if f.vectors > 1 else element
        return f.text.op(f"getelementptr {f.lanes.of(kind)}, ptr {ref.pointer}, i64 {scaled}")

    # elements that are a constant apart have their distance in the instruction that loads or stores
    pointer = f.cached(("private", ref.pointer, base.key), make) if form.terms else ref.pointer
    distance = (after * f.vectors + v) * f.width
    return f.cached(("private", pointer, distance), lambda: ahead(f, kind, pointer, distance))


def _pointers(f: LaneFrame, ref: PrivateMemory, indices: Sequence[Atom], v: int) -> str:
    """Returns pointers to each lane's copy of an element at varying indices."""
    o, i32 = f.vector, f.lanes.of("i32")
    total, stride = "", 1
    for index, size in zip(reversed(indices), reversed(ref.type.shape), strict=True):
        part = o.cast("trunc", "i64", f.vector_of(index, v), "i32") if index.dtype.bits == 64 else f.vector_of(index, v)
        part = o.binary("mul", i32, part, o.number("i32", stride * f.width * f.vectors))
        total = o.binary("add", i32, total, part) if total else part
        stride *= size
    total = o.binary("add", i32, total, f.steps("i32", v))
    return f.text.op(f"getelementptr {PRIVATE[ref.type.dtype]}, ptr {ref.pointer}, {i32} {total}")


def _is_fixed(f: LaneFrame, indices: Sequence[Atom]) -> bool:
    return all(isinstance(i, Literal) or f.is_uniform(i) for i in indices)


def load_private(f: LaneFrame, ref: PrivateMemory, indices: Sequence[Atom]) -> Value:
    """Loads an element of each lane's copy."""
    if ref.shared:
        return private.load_private(f, ref, indices)
    d = ref.type.dtype
    fixed = _is_fixed(f, indices)

    def load(v: int) -> str:
        if fixed:
            raw = f.text.op(f"load {f.lanes.of(PRIVATE[d])}, ptr {_element(f, ref, indices, v)}")
        else:
            raw = gather(f, PRIVATE[d], _pointers(f, ref, indices, v), f.mask_of(f.mask, v), "")
        return private.from_private(f.vector, d, raw)

    return f.each(d, load)


def store_private(f: LaneFrame, ref: PrivateMemory, value: Value, indices: Sequence[Atom]) -> None:
    """Stores an element of each active lane's copy."""
    if ref.shared:
        private.store_private(f, ref, value, indices)
        return
    d, o = ref.type.dtype, f.vector
    kind = PRIVATE[d]
    vector, fixed = f.lanes.of(kind), _is_fixed(f, indices)
    for v in range(f.vectors):
        raw = private.to_private(o, d, f.lanes_of(value, v))
        if not fixed:
            scatter(f, kind, raw, _pointers(f, ref, indices, v), f.mask_of(f.mask, v), "")
            continue
        pointer = _element(f, ref, indices, v)
        if f.mask.vectors is not None and not f.mask.without_iteration:
            old = kept_apart(f, vector, f.text.op(f"load {vector}, ptr {pointer}"))
            raw = o.select(f.mask.vectors[v], vector, raw, old)
        f.text.do(f"store {vector} {raw}, ptr {pointer}")
