"""Addresses of elements of memory.

Element numbers are computed modulo 2**32. For an array of at most 2**31 elements that determines the element of every
access whose index is in range, so arithmetic may wrap. Larger arrays take the exact 64-bit path.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lowering.llvm.types import BYTES, MEMORY, REGISTER
from qdtrace.analysis.index.affine import Flipped, Form, Quotient, Term
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Atom

MODULAR = 1 << 31


def element_pointer(f: Frame, ref: GlobalMemory, indices: Sequence[Atom]) -> str:
    """Returns a pointer to the element at uniform indices."""
    if ref.type.size > MODULAR:
        return exact_pointer(f, ref, indices)
    return form_pointer(f, ref, f.facts.forms.address(ref.type, indices))


def in_range(f: Frame, ref: GlobalMemory, indices: Sequence[Atom]) -> str:
    """Returns whether uniform indices are in range, as i1."""
    inside = "true"
    for index, size in zip(indices, ref.type.shape, strict=True):
        if isinstance(index, Literal):
            inside = inside if 0 <= int(index.value) < size else "false"
            continue
        fits = f.scalar.compare("icmp ult", REGISTER[index.dtype], f.scalar_of(index), str(size))
        inside = f.text.op(f"and i1 {inside}, {fits}")
    return inside


def form_pointer(f: Frame, ref: GlobalMemory, form: Form) -> str:
    """Returns a pointer to lane 0's element, given an affine form of its number."""
    kind = MEMORY[ref.type.dtype]
    far = abs(form.constant) + ref.type.size >= MODULAR
    base = form if far else Form(form.terms)
    pointer = ref.pointer
    if base.terms or base.constant:
        element = first_element(f, base, ref.type.size)
        pointer = f.cached(
            ("pointer", ref.pointer, element),
            lambda: f.text.op(f"getelementptr {kind}, ptr {ref.pointer}, i64 {element}"),
        )
    return pointer if far or not form.constant else ahead(f, kind, pointer, form.constant)


def first_element(f: Frame, form: Form, size: int) -> str:
    """Returns lane 0's element number as i64, wrapped to the signed 32-bit range, in an array of that size."""
    if not form.terms:
        return str((form.constant + (1 << 31)) % (1 << 32) - (1 << 31))
    # an index plus a constant wraps around into the array only if the constant is large
    exact = abs(form.constant) + size <= MODULAR and _is_index(form.terms)

    def make() -> str:
        total = _sum(f, form)
        bounds = f.facts.forms.bounds(form)
        if exact or (bounds is not None and bounds[0] >= -MODULAR and bounds[1] < MODULAR):
            return total
        return f.text.op(f"sext i32 {f.text.op(f'trunc i64 {total} to i32')} to i64")

    return f.cached(("element", form.key, exact), make)


def _is_index(terms: Mapping[Term, int]) -> bool:
    """Returns whether the form is one i32 value. A conversion to i32 may have cut a value of another type."""
    ((term, factor), *others) = terms.items()
    return not others and factor == 1 and isinstance(term, Var) and term.dtype is DType.i32


def _sum(f: Frame, form: Form) -> str:
    total = ""
    for term, coefficient in form.terms.items():
        value = _term_value(f, term)
        if coefficient != 1:
            value = f.cached(
                ("times", value, coefficient), partial(f.text.op, f"mul i64 {value}, {coefficient}")
            )
        total = f.text.op(f"add i64 {total}, {value}") if total else value
    if form.constant:
        total = f.text.op(f"add i64 {total}, {form.constant}") if total else str(form.constant)
    return total or "0"


def _term_value(f: Frame, term: Term) -> str:
    """Returns a term's value in lane 0 of vector 0, as i64."""
    if term is f.facts.task.index:
        return f.index
    if isinstance(term, Quotient):
        return f.cached(("quotient", term), lambda: _quotient_value(f, term))
    assert not isinstance(term, Flipped)
    scalar = f.scalar_of(term)
    if term.dtype.bits == 64:
        return scalar
    extend = "sext" if term.dtype.is_signed else "zext"
    return f.cached(("i64", term), lambda: f.text.op(f"{extend} {REGISTER[term.dtype]} {scalar} to i64"))


def _quotient_value(f: Frame, term: Quotient) -> str:
    signed = "s" if term.dtype.is_signed else "u"
    total = _sum(f, term.dividend)
    if term.dtype.bits == 32:
        total = f.text.op(f"trunc i64 {total} to i32")
        quotient = f.text.op(f"{signed}div i32 {total}, {term.divisor}")
        return f.text.op(f"{'s' if signed == 's' else 'z'}ext i32 {quotient} to i64")
    return f.text.op(f"{signed}div i64 {total}, {term.divisor}")


def exact_pointer(f: Frame, ref: GlobalMemory, indices: Sequence[Atom]) -> str:
    """Returns a pointer by 64-bit arithmetic on the indices as written, all uniform."""
    total, stride = "0", 1
    for index, size in zip(reversed(indices), reversed(ref.type.shape), strict=True):
        wide = f.scalar.cast("sext", REGISTER[index.dtype], f.scalar_of(index), "i64")
        total = f.text.op(f"add i64 {total}, {f.text.op(f'mul i64 {wide}, {stride}')}")
        stride *= size
    return f.text.op(f"getelementptr {MEMORY[ref.type.dtype]}, ptr {ref.pointer}, i64 {total}")


def ahead(f: Frame, kind: str, pointer: str, elements: int) -> str:
    """Returns the pointer some elements further."""
    if not elements:
        return pointer
    return f.text.op(f"getelementptr i8, ptr {pointer}, i64 {elements * BYTES[kind]}")
