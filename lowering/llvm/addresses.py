"""Where the lanes of an access are.

Element numbers are computed modulo 2**32. For an array of at most 2**31 elements that determines the element of every
lane whose index is in range, so arithmetic that wraps keeps its meaning. Larger arrays take the exact 64 bit path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.types import BYTES, MEMORY, REGISTER
from qdtrace.analysis.affine import Flipped, Form, Quotient, Term
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType, RefType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Atom

_MODULAR = 1 << 31


@dataclass(frozen=True, slots=True)
class Global:
    """A buffer of the call."""

    pointer: str
    type: RefType
    alias: str
    """Metadata: what it does not overlap."""
    invariant: str
    """Metadata of loads when the task never writes it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the lanes of an access are: `stride` elements apart from `pointer`, or at `pointer[offsets]`."""

    pointer: str
    stride: int | None
    offsets: list[str] | None = None
    """Element numbers per vector, when there is no constant stride."""
    offset_type: str = "i32"
    component: int | None = None
    """Where lanes are in neighbouring records of `stride` elements: which of them."""
    record: object = None
    """Equal for accesses to the same records."""


def _term_stride(f: Frame, term: Term) -> int | None:
    """Difference between neighbouring lanes; None when it is not constant."""
    if isinstance(term, Quotient):
        if f.facts.row is not None and term == f.facts.row.quotient:
            return 0
        terms: list[Term] = [t for t, _ in term.key[0]] if isinstance(term.key, tuple) else [term.key]
        return 0 if all(_term_stride(f, t) == 0 for t in terms) else None
    assert not isinstance(term, Flipped)  # the emitter's forms are made without them
    if term is f.facts.task.index:
        return 0 if f.is_scalar else 1 if f.neighbours else None
    return 0 if f.is_uniform(term) else None


def lane_stride(f: Frame, form: Form) -> int | None:
    """Difference of a form between neighbouring lanes; None when it is not constant."""
    total = 0
    for term, coefficient in form.terms.items():
        stride = _term_stride(f, term)
        if stride is None:
            return None
        total += stride * coefficient
    return total


def _term_value(f: Frame, term: Term) -> str:
    """A term as i64, of lane 0 of vector 0."""
    if term is f.facts.task.index:
        return f.index
    if isinstance(term, Quotient):
        if f.facts.row is not None and term == f.facts.row.quotient:
            return f.row_number
        return f.cached(("quotient", term), lambda: _quotient_value(f, term))
    assert not isinstance(term, Flipped)
    scalar = f.scalar_of(term)
    if term.dtype.bits == 64:
        return scalar
    extend = "sext" if term.dtype.is_signed else "zext"
    return f.cached(("i64", term), lambda: f.text.op(f"{extend} {REGISTER[term.dtype]} {scalar} to i64"))


def _quotient_value(f: Frame, term: Quotient) -> str:
    signed = "s" if term.dtype.is_signed else "u"
    if isinstance(term.key, tuple):
        form = Form(dict(term.key[0]), term.key[1])
        total = f.text.op(f"trunc i64 {_sum(f, form)} to i32")
        quotient = f.text.op(f"{signed}div i32 {total}, {term.divisor}")
        return f.text.op(f"{'s' if signed == 's' else 'z'}ext i32 {quotient} to i64")
    return f.text.op(f"{signed}div i64 {_term_value(f, term.key)}, {term.divisor}")


def _sum(f: Frame, form: Form) -> str:
    total = ""
    for term, coefficient in form.terms.items():
        value = _term_value(f, term)
        if coefficient != 1:
            value = f.text.op(f"mul i64 {value}, {coefficient}")
        total = f.text.op(f"add i64 {total}, {value}") if total else value
    if form.constant:
        total = f.text.op(f"add i64 {total}, {form.constant}") if total else str(form.constant)
    return total or "0"


def first_element(f: Frame, form: Form) -> str:
    """The element number of lane 0 as i64, of a form without constant, modulo 2**32 into the signed range."""

    def make() -> str:
        total = _sum(f, form)
        bounds = f.facts.forms.bounds(form)
        single = len(form.terms) == 1 and next(iter(form.terms.values())) == 1
        if single or not form.terms or (bounds is not None and bounds[0] >= -_MODULAR and bounds[1] < _MODULAR):
            return total
        return f.text.op(f"sext i32 {f.text.op(f'trunc i64 {total} to i32')} to i64")

    return f.cached(("element", form.key), make)


def _at(f: Frame, ref: Global, form: Form) -> str:
    """Pointer to the element of lane 0."""
    kind = MEMORY[ref.type.dtype]
    far = abs(form.constant) + ref.type.size >= _MODULAR
    base = form if far else Form(form.terms)
    pointer = ref.pointer
    if base.terms or base.constant:
        element = first_element(f, base)
        pointer = f.cached(
            ("pointer", ref.pointer, element),
            lambda: f.text.op(f"getelementptr {kind}, ptr {ref.pointer}, i64 {element}"),
        )
    return pointer if far or not form.constant else ahead(f, kind, pointer, form.constant)


def ahead(f: Frame, kind: str, pointer: str, elements: int) -> str:
    """The pointer some elements further."""
    if not elements:
        return pointer
    return f.text.op(f"getelementptr i8, ptr {pointer}, i64 {elements * BYTES[kind]}")


def locate(f: Frame, ref: Global, indices: Sequence[Atom]) -> Place:
    """Where each lane's element is."""
    uniform = all(isinstance(i, Literal) or f.is_uniform(i) for i in indices)
    if ref.type.size <= _MODULAR:
        form = f.facts.forms.address(ref.type, indices)
        stride = lane_stride(f, form)
        if stride is not None and (stride == 0) == uniform and abs(stride) * f.width * f.vectors < _MODULAR:
            component = component_of(f, form, stride, ref.type.size)
            record = None if component is None else (stride, Form(form.terms, form.constant - component))
            return Place(_at(f, ref, form), stride, component=component, record=record)
    elif uniform:
        return Place(_exact(f, ref, indices), 0)
    return _scattered(f, ref, indices)


def _exact(f: Frame, ref: Global, indices: Sequence[Atom]) -> str:
    """Pointer by 64 bit arithmetic on the true indices, all uniform."""
    total, stride = "0", 1
    for index, size in zip(reversed(indices), reversed(ref.type.shape), strict=True):
        wide = f.scalar.cast("sext", REGISTER[index.dtype], f.scalar_of(index), "i64")
        total = f.text.op(f"add i64 {total}, {f.text.op(f'mul i64 {wide}, {stride}')}")
        stride *= size
    return f.text.op(f"getelementptr {MEMORY[ref.type.dtype]}, ptr {ref.pointer}, i64 {total}")


def _scattered(f: Frame, ref: Global, indices: Sequence[Atom]) -> Place:
    """Lanes at unrelated places: uniform components go into the pointer, the others into vectors of element numbers."""
    wide = ref.type.size > _MODULAR
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
    pointer = _exact(f, ref, fixed) if wide else _at(f, ref, f.facts.forms.address(ref.type, fixed))

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
    return Place(pointer, None, offsets, register)


_ZERO = literal(0, DType.i32)


def component_of(f: Frame, form: Form, stride: int, size: int) -> int | None:
    """Which component of records of `stride` elements an address names; None when the array is not made of them.

    When the component of a lane is in the array, its whole record is.
    """
    widest = max(4, f.width // 2 + 1)
    if f.is_scalar or not 2 <= stride <= widest or size % stride or any(c % stride for c in form.terms.values()):
        return None
    return form.constant % stride


def lane_pointers(f: Frame, place: Place, kind: str, v: int) -> str:
    """A vector of pointers."""
    if place.offsets is not None:
        return f.text.op(
            f"getelementptr {kind}, ptr {place.pointer}, {f.lanes.of(place.offset_type)} {place.offsets[v]}"
        )
    assert place.stride is not None
    steps = f.lanes.range("i32", v * f.width * place.stride, place.stride)
    return f.text.op(f"getelementptr {kind}, ptr {place.pointer}, {f.lanes.of('i32')} {steps}")
