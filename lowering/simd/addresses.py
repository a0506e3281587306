"""Addresses of the lanes of an access: one element, a constant stride, or unrelated elements."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from lowering.llvm.addresses import MODULAR, element_pointer, exact_pointer, form_pointer
from lowering.llvm.types import REGISTER
from lowering.simd.descriptions import Address, Component
from lowering.simd.strips import SHORTEST, is_long_record
from qdtrace.analysis.index.affine import Flipped, Form, Quotient, Term
from qdtrace.ir.program import Atom, Literal, literal
from qdtrace.ir.types import DType, RefType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.simd.frame import LaneFrame


def locate(f: LaneFrame, ref: GlobalMemory, indices: Sequence[Atom]) -> Address:
    """Returns the addresses of the lanes' elements."""
    if _is_shared(f, indices):
        return Address(element_pointer(f, ref, indices), 0)
    found = _strided(f, ref.type, indices)
    if found is None:
        return _scattered(f, ref, indices)
    form, stride = found
    return Address(form_pointer(f, ref, form), stride, record=_record(f, ref.type, form, stride))


def record_of(f: LaneFrame, type_: RefType, indices: Sequence[Atom]) -> Component | None:
    """Returns the component of neighbouring records that lanes access, or None if they access anything else."""
    found = None if _is_shared(f, indices) else _strided(f, type_, indices)
    return None if found is None else _record(f, type_, *found)


def _is_shared(f: LaneFrame, indices: Sequence[Atom]) -> bool:
    return all(isinstance(i, Literal) or f.is_uniform(i) for i in indices)


def _strided(f: LaneFrame, type_: RefType, indices: Sequence[Atom]) -> tuple[Form, int] | None:
    """Returns the number of lane 0's element and the lanes' constant stride, or None if the stride varies."""
    if type_.size > MODULAR:
        return None
    form = f.facts.forms.address(type_, indices)
    stride = lane_stride(f, form)
    return (form, stride) if stride and abs(stride) * f.width * f.vectors < MODULAR else None


def _record(f: LaneFrame, type_: RefType, form: Form, stride: int) -> Component | None:
    """Returns the component of records of `stride` elements at an address, or None for other arrays.

    If the component of a lane is in the array, its whole record is. Long records have pieces of as many elements as a
    vector has lanes, then of half as many, and so on; what is left behind those of four belongs to none. Pieces of a
    part of a record, a line of a board or a strip, begin where it does; the array has all of one if records have it.
    """
    if stride < 2:
        return None
    length, is_whole = gcd(stride, *form.terms.values()), True
    size, number = stride, form.constant % stride
    if is_long_record(stride, f.width):
        if f.split:  # stores that wait for the others of their piece would keep parts from ending
            return None
        if length < stride:
            length = gcd(*(c for t, c in form.terms.items() if t is not f.facts.task.index))
            number, is_whole = form.constant % length, stride % length == 0
        start, size = 0, f.width
        while number >= start + (length - start) // size * size:
            start += (length - start) // size * size
            size //= 2
            if size < SHORTEST:
                return None
        number = (number - start) % size
    elif length < stride or type_.size % stride:
        return None
    return Component(number, size, Form(form.terms, form.constant - number), is_whole and type_.size % length == 0)


def _term_stride(f: LaneFrame, term: Term) -> int | None:
    """Returns a term's difference between neighbouring lanes, or None if it is not constant."""
    if isinstance(term, Quotient):
        if f.row is not None and f.row.keeps(term):
            return 0
        return 0 if all(_term_stride(f, t) == 0 for t in term.dividend.terms) else None
    assert not isinstance(term, Flipped)  # the emitter's forms are made without them
    if term is f.facts.task.index:
        return 0 if f.is_scalar else 1
    return 0 if f.is_uniform(term) else None


def lane_stride(f: LaneFrame, form: Form) -> int | None:
    """Returns a form's difference between neighbouring lanes, or None if it is not constant."""
    total = 0
    for term, coefficient in form.terms.items():
        stride = _term_stride(f, term)
        if stride is None:
            return None
        total += stride * coefficient
    return total


def _scattered(f: LaneFrame, ref: GlobalMemory, indices: Sequence[Atom]) -> Address:
    """Returns unrelated addresses: uniform indices go into the pointer, the others into vectors of element numbers."""
    wide = ref.type.size > MODULAR
    kind = DType.i64 if wide or any(i.dtype is DType.i64 for i in indices) else DType.i32
    o, register = f.vector, REGISTER[kind]
    fixed: list[Atom] = []
    parts: list[tuple[Atom, int]] = []
    stride = 1
    for index, size in zip(reversed(indices), reversed(ref.type.shape), strict=True):
        if isinstance(index, Literal) or f.is_uniform(index):
            fixed.insert(0, index)
        else:
            fixed.insert(0, _ZERO)
            parts.append((index, stride))
        stride *= size
    pointer = exact_pointer(f, ref, fixed) if wide else form_pointer(f, ref, f.facts.forms.address(ref.type, fixed))

    def offset(v: int) -> str:
        total = ""
        for index, step in reversed(parts):
            value = f.vector_of(index, v)
            if index.dtype is not kind:
                value = o.cast("sext", REGISTER[index.dtype], value, register)
            if step != 1:
                value = o.binary("mul", o.type(kind), value, o.constant(step, kind))
            total = o.binary("add", o.type(kind), total, value) if total else value
        return total

    names = tuple((i, s) for i, s in parts)
    offsets = [f.cached(("offsets", kind, names, v), lambda v=v: offset(v)) for v in range(f.vectors)]
    return Address(pointer, None, offsets, register)


_ZERO = literal(0, DType.i32)


def lane_pointers(f: LaneFrame, address: Address, kind: str, v: int) -> str:
    """Returns the pointers of vector v's lanes, as a vector."""
    if address.offsets is not None:
        return f.text.op(
            f"getelementptr {kind}, ptr {address.pointer}, {f.lanes.of(address.offset_type)} {address.offsets[v]}"
        )
    assert address.stride is not None
    steps = f.lanes.range("i32", v * f.width * address.stride, address.stride)
    return f.text.op(f"getelementptr {kind}, ptr {address.pointer}, {f.lanes.of('i32')} {steps}")
