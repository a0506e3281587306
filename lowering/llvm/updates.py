"""Accumulations into memory that other threads accumulate into too.

Components of one element, `f[a, 0]` and `f[a, 1]`, that are accumulated one after another are a *record*: lanes go
through their records one after another. A locked instruction takes as long for sixteen bytes as for four, so components
whose alignment is proved share one compare-and-swap. Each is rounded as it would be alone.

A task also has code without locks, which runs where the launcher says that nobody else sees the memory: it is on one
thread, or has a copy of the array (`copies`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowering.llvm.addresses import Place, ahead, lane_pointers, locate
from lowering.llvm.combining import active_or_identity, combine, reduce_lanes
from lowering.llvm.interleave import pick
from lowering.llvm.lane_loops import each_active
from lowering.llvm.locked import atomic_scalar, exchange_record
from lowering.llvm.memory import load_scalar, store_scalar
from lowering.llvm.ops import Ops
from lowering.llvm.types import BYTES, MEMORY, REGISTER
from lowering.llvm.vectors import Lanes
from qdtrace.ir.program import Literal, ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.addresses import Global
    from lowering.llvm.frame import Frame
    from qdtrace.ir.program import Atom, Var

MOST_COMPONENTS = 8
"""Components of a record that wait for each other."""
UNROLL = 4
"""Lanes a turn of the loop without locks."""
_BASE_ALIGNMENT = 16
"""Bytes: less than XLA and the runtime align every array to."""


@dataclass(slots=True)
class Record:
    """Accumulations into neighbouring components, in order."""

    ref: Var
    op: str
    indices: tuple[Atom, ...]
    """Of the first component."""
    values: list[Atom]

    def takes(self, op: str, indices: tuple[Atom, ...]) -> bool:
        """Whether this is the next component of the same element."""
        if op != self.op or len(self.values) == MOST_COMPONENTS or indices[:-1] != self.indices[:-1]:
            return False
        first, this = _component(self.indices), _component(indices)
        return first is not None and this == first + len(self.values)


def _component(indices: tuple[Atom, ...]) -> int | None:
    last = indices[-1] if indices else None
    return int(last.value) if isinstance(last, Literal) else None


@dataclass
class WaitingUpdates:
    """Records of the current block that may get more components, one a reference."""

    records: dict[Var, Record] = field(default_factory=dict)

    def add(self, f: Frame, ref: Var, op: str, indices: tuple[Atom, ...], value: Atom) -> None:
        """An accumulation into a reference into which the task only accumulates."""
        record = self.records.get(ref)
        if record is not None and record.takes(op, indices):
            record.values.append(value)
            return
        if record is not None:
            update(f, self.records.pop(ref))
        record = Record(ref, op, indices, [value])
        if _component(indices) is None or BYTES[MEMORY[ref.dtype]] < 4:
            update(f, record)
        else:
            self.records[ref] = record

    def settle(self, f: Frame) -> None:
        """Makes all updates that wait."""
        while self.records:
            update(f, self.records.pop(next(iter(self.records))))


def update(f: Frame, record: Record) -> None:
    """Accumulates a record in every active lane."""
    memory = f.globals[record.ref]
    place = locate(f, memory, record.indices)
    d = record.ref.dtype
    if f.is_scalar:
        _scalar(f, memory, record, place.pointer)
    elif place.stride == 0:
        for k, value in enumerate(record.values):
            total = reduce_lanes(f, record.op, d, active_or_identity(f, f.mask, record.op, d, value))
            atomic_scalar(f, record.op, d, memory, ahead(f, MEMORY[d], place.pointer, k), [total])
    else:
        _lanes(f, memory, record, place)


def _scalar(f: Frame, memory: Global, record: Record, pointer: str) -> None:
    if len(record.values) == 1:
        value = f.scalar_of(record.values[0])
        plain, locked = (
            lambda: _element(f, memory, record.op, pointer, value, locked=False),
            lambda: _element(f, memory, record.op, pointer, value, locked=True),
        )
    else:
        kind = MEMORY[record.ref.dtype]
        values = f.text.slot(f"[{len(record.values)} x {kind}]")
        for k, atom in enumerate(record.values):
            f.text.do(f"store {kind} {f.scalar_of(atom)}, ptr {ahead(f, kind, values, k)}")
        plain, locked = (
            lambda: _plain_components(f, memory, record, pointer, values),
            lambda: _locked_components(f, memory, record, pointer, values),
        )
    _choose(f, plain, locked)


def _lanes(f: Frame, memory: Global, record: Record, place: Place) -> None:
    """Lane after lane. Operands go through the stack, as records: a lane then loads its own."""
    text, d, width, many = f.text, record.ref.dtype, f.width, len(record.values)
    kind = "i8" if d is DType.bool else REGISTER[d]
    pointers, values = text.slot(f"[{width} x ptr]"), text.slot(f"[{width * many} x {kind}]")

    def lane_of(pointer: str, type_: str, lane: str) -> str:
        return text.op(f"getelementptr {type_}, ptr {pointer}, i64 {lane}")

    def one(lane: str, locked: bool = True) -> None:
        target = text.op(f"load ptr, ptr {lane_of(pointers, 'ptr', lane)}")
        given = lane_of(values, f"[{many} x {kind}]", lane)
        if many > 1:
            make = _locked_components if locked else _plain_components
            make(f, memory, record, target, given)
            return
        raw = text.op(f"load {kind}, ptr {given}")
        value = f.scalar.cast("trunc", "i8", raw, "i1") if d is DType.bool else raw
        _element(f, memory, record.op, target, value, locked)

    for v in range(f.vectors):
        text.do(f"store {f.lanes.of('ptr')} {lane_pointers(f, place, MEMORY[d], v)}, ptr {pointers}")
        spelled = [f.vector_of(value, v) for value in record.values]
        if d is DType.bool:
            spelled = [f.vector.cast("zext", "i1", s, "i8") for s in spelled]
        for k in range(many):
            wanted = [e % many * width + e // many for e in range(k * width, (k + 1) * width)]
            raw = spelled[0] if many == 1 else pick(f, kind, spelled, wanted)
            text.do(f"store {f.lanes.of(kind)} {raw}, ptr {ahead(f, kind, values, k * width)}")
        _each_lane(f, v, lambda lane: one(lane, locked=False), one)


def _each_lane(f: Frame, v: int, plain: Callable[[str], None], locked: Callable[[str], None]) -> None:
    def all_plain() -> None:
        with f.text.counted("0", str(f.width), 1, UNROLL) as lane:
            plain(lane)

    def all_locked() -> None:
        with each_active(f, v) as lane:
            locked(lane)

    if f.mask.vectors is None:
        _choose(f, all_plain, all_locked)
    else:
        with each_active(f, v) as lane:
            _choose(f, lambda: plain(lane), lambda: locked(lane))


def _choose(f: Frame, plain: Callable[[], None], locked: Callable[[], None]) -> None:
    """The way without locks where nobody else sees the memory."""
    text = f.text
    alone, shared, done = map(text.fresh_label, ("alone", "shared", "updated"))
    text.branch(f.alone, alone, shared)
    for label, make in ((alone, plain), (shared, locked)):
        text.begin(label)
        with f.region():
            make()
        text.jump(done)
    text.begin(done)


def _element(f: Frame, memory: Global, op: str, pointer: str, value: str, locked: bool) -> None:
    d = memory.type.dtype
    if locked:
        atomic_scalar(f, op, d, memory, pointer, [value])
    else:
        store_scalar(f, memory, pointer, combine(f.scalar, op, d, load_scalar(f, memory, pointer), value))


# Components of a record together


def _wide(f: Frame, d: DType, count: int) -> Ops:
    return Ops(f.text, Lanes(count), f.target, f.scalar.fast_math)


def _plain_components(f: Frame, memory: Global, record: Record, target: str, values: str) -> None:
    """The components from `target` on, by the values that lie from `values` on."""
    text, d, many = f.text, record.ref.dtype, len(record.values)
    kind, size, k = MEMORY[d], BYTES[MEMORY[d]], 0
    while k < many:
        count = next(n for n in (4, 2, 1) if n <= many - k)
        o = _wide(f, d, count)
        at, given = ahead(f, kind, target, k), ahead(f, kind, values, k)
        old = text.op(f"load {o.type(d)}, ptr {at}, align {size}{memory.alias}")
        new = combine(o, record.op, d, old, text.op(f"load {o.type(d)}, ptr {given}, align {size}"))
        text.do(f"store {o.type(d)} {new}, ptr {at}, align {size}{memory.alias}")
        k += count


def _locked_components(f: Frame, memory: Global, record: Record, target: str, values: str) -> None:
    """The same where other threads do so too."""
    text, d, many = f.text, record.ref.dtype, len(record.values)
    kind, size = MEMORY[d], BYTES[MEMORY[d]]

    def together(at: str, given: str, count: int) -> None:
        o = _wide(f, d, count)
        value = text.op(f"load {o.type(d)}, ptr {given}, align {size}")
        exchange_record(f, o, d, memory, at, lambda old: combine(o, record.op, d, old, value))

    def alone(at: str, given: str) -> None:
        atomic_scalar(f, record.op, d, memory, at, [text.op(f"load {kind}, ptr {given}")])

    alignment, widest = _alignment(record), widest_exchange(f)
    if size in (4, 8) and alignment % (2 * size) and many % 2 and widest >= 2 * size:
        _odd(f, record, target, values, together, alone)
        return
    k = 0
    while k < many:
        here = math.gcd(alignment, k * size or _BASE_ALIGNMENT)
        count = max(1, min(here, widest) // size)
        while count > 1 and k + count > many:
            count //= 2
        at, given = ahead(f, kind, target, k), ahead(f, kind, values, k)
        if count > 1:
            together(at, given, count)
        else:
            alone(at, given)
        k += count


def _odd(
    f: Frame,
    record: Record,
    target: str,
    values: str,
    together: Callable[[str, str, int], None],
    alone: Callable[[str, str], None],
) -> None:
    """An odd number of components: pairs of them are aligned from the first on, or else from the second."""
    text, many, size = f.text, len(record.values), BYTES[MEMORY[record.ref.dtype]]
    address = text.op(f"ptrtoint ptr {target} to i64")
    late = text.op(f"and i64 {address}, {size}")
    for k in range(many // 2):
        pair = [ahead(f, "i8", p, 2 * size * k) for p in (target, values)]
        at, given = (text.op(f"getelementptr i8, ptr {p}, i64 {late}") for p in pair)
        together(at, given, 2)
    left = text.op(f"select i1 {text.op(f'icmp eq i64 {late}, 0')}, i64 {size * (many - 1)}, i64 0")
    at, given = (text.op(f"getelementptr i8, ptr {p}, i64 {left}") for p in (target, values))
    alone(at, given)


def _alignment(record: Record) -> int:
    """Bytes that the address of the first component is a multiple of."""
    size, shape = BYTES[MEMORY[record.ref.dtype]], ref_type(record.ref).shape
    found = math.gcd(_BASE_ALIGNMENT, (_component(record.indices) or 0) * size)
    return math.gcd(found, shape[-1] * size) if math.prod(shape[:-1]) > 1 else found


def widest_exchange(f: Frame) -> int:
    """Bytes that one compare-and-swap may change. Processors with AVX2 exchange sixteen, and load them in one piece."""
    cpu = f.target
    wide = cpu.triple.startswith("x86_64") and cpu.vector_bits >= 256 and "-cx16" not in cpu.features
    return 16 if wide else 8
