"""Loads and stores: addresses by lane stride, vectors where lanes touch neighbours, gathers and scatters elsewhere.

Element numbers are computed modulo 2**32. For an array of at most 2**31 elements that determines the element of every
lane whose index is in range, so arithmetic that wraps keeps its meaning. Larger arrays take the exact 64 bit path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.conversions import from_bits, to_bits
from lowering.llvm.types import BYTES, MEMORY, PRIVATE, REGISTER, SMALL_FLOATS
from lowering.llvm.vectors import Lanes, Mask, Value
from qdtrace.analysis.affine import Form, Quotient, Term
from qdtrace.ir.program import Literal, literal
from qdtrace.ir.types import DType, RefType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom, Eqn

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
class Private:
    """Memory of each lane: element by element, V vectors of W lanes."""

    pointer: str
    type: RefType
    shared: bool
    """One copy for all lanes (made in the head of the task)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the lanes of an access are: `stride` elements apart from `pointer`, or at `pointer[offsets]`."""

    pointer: str
    stride: int | None
    offsets: list[str] | None = None
    """Element numbers per vector, when there is no constant stride."""
    offset_type: str = "i32"


def from_memory(o: Ops, dtype: DType, raw: str) -> str:
    """A value as it is in registers."""
    if dtype is DType.bool:
        return o.compare("icmp ne", o.vector("i8"), raw, o.number("i8", 0))
    return from_bits(o, dtype, raw) if dtype in SMALL_FLOATS else raw


def to_memory(o: Ops, dtype: DType, value: str) -> str:
    """A value as it is in memory."""
    if dtype is DType.bool:
        return o.cast("zext", "i1", value, "i8")
    return to_bits(o, dtype, value) if dtype in SMALL_FLOATS else value


# Addresses


def _term_stride(f: Frame, term: Term) -> int | None:
    """Difference between neighbouring lanes; None when it is not constant."""
    if isinstance(term, Quotient):
        if f.facts.row is not None and term == f.facts.row.quotient:
            return 0
        terms = [t for t, _ in term.key[0]] if isinstance(term.key, tuple) else [term.key]
        return 0 if all(_term_stride(f, t) == 0 for t in terms) else None
    if term is f.facts.task.index:
        return 0 if f.is_scalar else 1
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
    return f.text.op(f"{signed}div i64 {_term_value(f, term.key)}, {term.divisor}")  # type: ignore[arg-type]


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


def _first_element(f: Frame, form: Form) -> str:
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
        element = _first_element(f, base)
        pointer = f.cached(
            ("pointer", ref.pointer, element),
            lambda: f.text.op(f"getelementptr {kind}, ptr {ref.pointer}, i64 {element}"),
        )
    return pointer if far or not form.constant else _ahead(f, kind, pointer, form.constant)


def _ahead(f: Frame, kind: str, pointer: str, elements: int) -> str:
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
            return Place(_at(f, ref, form), stride)
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


def lane_pointers(f: Frame, place: Place, kind: str, v: int) -> str:
    """A vector of pointers."""
    if place.offsets is not None:
        return f.text.op(
            f"getelementptr {kind}, ptr {place.pointer}, {f.lanes.of(place.offset_type)} {place.offsets[v]}"
        )
    assert place.stride is not None
    steps = f.lanes.range("i32", v * f.width * place.stride, place.stride)
    return f.text.op(f"getelementptr {kind}, ptr {place.pointer}, {f.lanes.of('i32')} {steps}")


# Loads and stores of shared memory


def load(f: Frame, eqn: Eqn) -> None:
    """`load`."""
    ref, out = eqn.invars[0], eqn.outvars[0]
    if ref in f.privates:
        f.env[out] = load_private(f, f.privates[ref], eqn.invars[1:])
        return
    memory = f.globals[ref]
    place = locate(f, memory, eqn.invars[1:])
    if place.stride == 0 or f.is_scalar:
        f.env[out] = Value(out.dtype, scalar=load_scalar(f, memory, place.pointer))
    else:
        f.env[out] = load_lanes(f, memory, place, f.mask)


def load_scalar(f: Frame, ref: Global, pointer: str) -> str:
    """One element."""
    kind = MEMORY[ref.type.dtype]
    raw = f.text.op(f"load {kind}, ptr {pointer}, align {BYTES[kind]}{ref.alias}{ref.invariant}")
    return from_memory(f.scalar, ref.type.dtype, raw)


def load_lanes(f: Frame, ref: Global, place: Place, mask: Mask) -> Value:
    """One element a lane; 0 in lanes that are not active."""
    d, o = ref.type.dtype, f.vector
    kind = MEMORY[d]
    vector, size = f.lanes.of(kind), BYTES[kind]

    def one(v: int) -> str:
        if place.stride == 1:
            pointer = _ahead(f, kind, place.pointer, v * f.width)
            if mask.vectors is None:
                raw = f.text.op(f"load {vector}, ptr {pointer}, align {size}{ref.alias}{ref.invariant}")
            else:
                raw = masked_load(f, kind, pointer, mask.vectors[v], ref.alias)
        else:
            raw = gather(f, kind, lane_pointers(f, place, kind, v), f.mask_of(mask, v), ref.alias)
        return from_memory(o, d, raw)

    return f.each(d, one)


def masked_load(f: Frame, kind: str, pointer: str, mask: str, metadata: str) -> str:
    """Neighbouring elements of the active lanes."""
    vector, bits = f.lanes.of(kind), f.vector.bits
    symbol = f"llvm.masked.load.{f.lanes.suffix(kind)}.p0"
    f.text.module.declare(symbol, vector, f"ptr, i32, {bits}, {vector}")
    return f.text.op(
        f"call {vector} @{symbol}(ptr {pointer}, i32 {BYTES[kind]}, {bits} {mask}, {vector} zeroinitializer){metadata}"
    )


def gather(f: Frame, kind: str, pointers: str, mask: str, metadata: str) -> str:
    """Elements at a vector of pointers, for the active lanes."""
    vector, bits, places = f.lanes.of(kind), f.vector.bits, f.lanes.of("ptr")
    symbol = f"llvm.masked.gather.{f.lanes.suffix(kind)}.{f.lanes.suffix('ptr')}"
    f.text.module.declare(symbol, vector, f"{places}, i32, {bits}, {vector}")
    return f.text.op(
        f"call {vector} @{symbol}({places} {pointers}, i32 {BYTES[kind]}, {bits} {mask}, "
        f"{vector} zeroinitializer){metadata}"
    )


def scatter(f: Frame, kind: str, value: str, pointers: str, mask: str, metadata: str) -> None:
    """Stores at a vector of pointers, in lane order, for the active lanes."""
    vector, bits, places = f.lanes.of(kind), f.vector.bits, f.lanes.of("ptr")
    symbol = f"llvm.masked.scatter.{f.lanes.suffix(kind)}.{f.lanes.suffix('ptr')}"
    f.text.module.declare(symbol, "void", f"{vector}, {places}, i32, {bits}")
    f.text.do(f"call void @{symbol}({vector} {value}, {places} {pointers}, i32 {BYTES[kind]}, {bits} {mask}){metadata}")


def store(f: Frame, eqn: Eqn) -> None:
    """`store`."""
    ref, value = eqn.invars[0], eqn.invars[1]
    if ref in f.privates:
        store_private(f, f.privates[ref], f.value(value), eqn.invars[2:])
        return
    memory = f.globals[ref]
    place = locate(f, memory, eqn.invars[2:])
    uniform = isinstance(value, Literal) or f.is_uniform(value)
    if f.is_scalar or (place.stride == 0 and uniform):
        store_scalar(f, memory, place.pointer, f.scalar_of(value))
    else:
        store_lanes(f, memory, place, [f.vector_of(value, v) for v in range(f.vectors)], f.mask)


def store_scalar(f: Frame, ref: Global, pointer: str, value: str) -> None:
    """One element."""
    kind = MEMORY[ref.type.dtype]
    raw = to_memory(f.scalar, ref.type.dtype, value)
    f.text.do(f"store {kind} {raw}, ptr {pointer}, align {BYTES[kind]}{ref.alias}")


def store_lanes(f: Frame, ref: Global, place: Place, values: list[str], mask: Mask) -> None:
    """One element an active lane."""
    d, o = ref.type.dtype, f.vector
    kind = MEMORY[d]
    vector, size, bits = f.lanes.of(kind), BYTES[kind], f.vector.bits
    for v, value in enumerate(values):
        raw = to_memory(o, d, value)
        if place.stride != 1:
            scatter(f, kind, raw, lane_pointers(f, place, kind, v), f.mask_of(mask, v), ref.alias)
            continue
        pointer = _ahead(f, kind, place.pointer, v * f.width)
        if mask.vectors is None:
            f.text.do(f"store {vector} {raw}, ptr {pointer}, align {size}{ref.alias}")
        else:
            symbol = f"llvm.masked.store.{f.lanes.suffix(kind)}.p0"
            f.text.module.declare(symbol, "void", f"{vector}, ptr, i32, {bits}")
            f.text.do(
                f"call void @{symbol}({vector} {raw}, ptr {pointer}, i32 {size}, {bits} {mask.vectors[v]}){ref.alias}"
            )


# Private memory


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
    element = _first_element(f, form)
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
