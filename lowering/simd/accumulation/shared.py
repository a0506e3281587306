"""Large arrays that threads share: atomic updates, or plain ones if the launcher says that no other thread looks.

The code of a task has both variants. No other thread looks if the task runs on one thread, or if the thread has copies
of the arrays (`thread_copies`). Then lanes with neighbouring elements update them as a vector. All others update their
elements one after another, or components that are updated together (`update_groups`). A locked instruction takes as
long for sixteen bytes as for four, so components whose alignment is proved share one compare-and-swap. Each is rounded
as it would be alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead
from lowering.llvm.atomics import atomic_scalar, exchange_record
from lowering.llvm.combining import combine
from lowering.llvm.memory import load_scalar, store_scalar
from lowering.llvm.private import from_private, to_private
from lowering.llvm.types import BYTES, MEMORY, PRIVATE
from lowering.simd.accumulation.components import side_by_side, update_components, wide
from lowering.simd.accumulation.exclusive import update_own
from lowering.simd.accumulation.lanes import active_or_identity, each_active, reduce_lanes
from lowering.simd.addresses import lane_pointers, locate

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.plan.update_groups import UpdateGroup
    from lowering.simd.descriptions import Address
    from lowering.simd.frame import LaneFrame

UNROLL = 4
"""Unrolling of the loop over lanes without locks."""


def update(f: LaneFrame, group: UpdateGroup) -> None:
    """Emits the accumulation of a group in every active lane."""
    memory = f.globals[group.ref]
    address = locate(f, memory, group.indices)
    d = group.ref.dtype
    if f.is_scalar:
        _scalar(f, memory, group, address.pointer)
    elif address.stride == 0:
        for k, value in enumerate(group.values):
            total = reduce_lanes(f, group.op, d, active_or_identity(f, f.mask, group.op, d, value))
            atomic_scalar(f, group.op, d, memory, ahead(f, MEMORY[d], address.pointer, k), [total])
    elif len(group.values) == 1 and (address.stride in (-1, 1) or group.ref in f.facts.exclusive_accums):
        # lanes have elements of their own at a time; only other threads may update them
        (value,) = group.values
        _choose(f, lambda: update_own(f, memory, address, group.op, value), lambda: _lanes(f, memory, group, address))
    else:
        _lanes(f, memory, group, address)


def _scalar(f: LaneFrame, memory: GlobalMemory, group: UpdateGroup, pointer: str) -> None:
    if len(group.values) == 1:
        value = f.scalar_of(group.values[0])
        plain, locked = (
            lambda: _element(f, memory, group.op, pointer, value, locked=False),
            lambda: _element(f, memory, group.op, pointer, value, locked=True),
        )
    else:
        kind = MEMORY[group.ref.dtype]
        values = f.text.slot(f"[{len(group.values)} x {kind}]")
        for k, atom in enumerate(group.values):
            f.text.do(f"store {kind} {f.scalar_of(atom)}, ptr {ahead(f, kind, values, k)}")
        plain, locked = (
            lambda: update_components(f, memory, group.op, (pointer, values), len(group.values)),
            lambda: _locked_components(f, memory, group, pointer, values),
        )
    _choose(f, plain, locked)


def _lanes(f: LaneFrame, memory: GlobalMemory, group: UpdateGroup, address: Address) -> None:
    """Emits updates lane after lane. Operands go through the stack, as records, so that a lane loads its own."""
    text, d, width, many = f.text, group.ref.dtype, f.width, len(group.values)
    kind = PRIVATE[d]
    pointers, values = text.slot(f"[{width} x ptr]"), text.slot(f"[{width * many} x {kind}]")

    def lane_of(pointer: str, type_: str, lane: str) -> str:
        return text.op(f"getelementptr {type_}, ptr {pointer}, i64 {lane}")

    def one(lane: str, locked: bool = True) -> None:
        target = text.op(f"load ptr, ptr {lane_of(pointers, 'ptr', lane)}")
        given = lane_of(values, f"[{many} x {kind}]", lane)
        if many > 1:
            if locked:
                _locked_components(f, memory, group, target, given)
            else:
                update_components(f, memory, group.op, (target, given), many)
            return
        value = from_private(f.scalar, d, text.op(f"load {kind}, ptr {given}"))
        _element(f, memory, group.op, target, value, locked)

    for v in range(f.vectors):
        text.do(f"store {f.lanes.of('ptr')} {lane_pointers(f, address, MEMORY[d], v)}, ptr {pointers}")
        spelled = [to_private(f.vector, d, f.vector_of(value, v)) for value in group.values]
        for k, raw in enumerate(side_by_side(f, kind, spelled)):
            text.do(f"store {f.lanes.of(kind)} {raw}, ptr {ahead(f, kind, values, k * width)}")
        _each_lane(f, v, lambda lane: one(lane, locked=False), one)


def _each_lane(f: LaneFrame, v: int, plain: Callable[[str], None], locked: Callable[[str], None]) -> None:
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


def _choose(f: LaneFrame, plain: Callable[[], None], locked: Callable[[], None]) -> None:
    """Emits a branch to the variant without locks if no other thread sees the memory."""
    text = f.text
    alone, shared, done = map(text.fresh_label, ("alone", "shared", "updated"))
    text.branch(f.accumulators.alone, alone, shared)
    for label, make in ((alone, plain), (shared, locked)):
        text.begin(label)
        with f.region():
            make()
        text.jump(done)
    text.begin(done)


def _element(f: LaneFrame, memory: GlobalMemory, op: str, pointer: str, value: str, locked: bool) -> None:
    d = memory.type.dtype
    if locked:
        atomic_scalar(f, op, d, memory, pointer, [value])
    else:
        store_scalar(f, memory, pointer, combine(f.scalar, op, d, load_scalar(f, memory, pointer), value))


# Components of a group together


def _locked_components(f: LaneFrame, memory: GlobalMemory, group: UpdateGroup, target: str, values: str) -> None:
    """Emits atomic updates of the components from `target` on by the values from `values` on."""
    text, d, many = f.text, group.ref.dtype, len(group.values)
    kind, size = MEMORY[d], BYTES[MEMORY[d]]

    def together(at: str, given: str, count: int) -> None:
        o = wide(f, count)
        value = text.op(f"load {o.type(d)}, ptr {given}, align {size}")
        exchange_record(f, o, d, memory, at, lambda old: combine(o, group.op, d, old, value))

    def alone(at: str, given: str) -> None:
        atomic_scalar(f, group.op, d, memory, at, [text.op(f"load {kind}, ptr {given}")])

    widest = widest_exchange(f)
    if size in (4, 8) and group.alignment % (2 * size) and many % 2 and widest >= 2 * size:
        _odd(f, group, target, values, together, alone)
        return
    for k, count in group.aligned(widest):
        at, given = ahead(f, kind, target, k), ahead(f, kind, values, k)
        if count > 1:
            together(at, given, count)
        else:
            alone(at, given)


def _odd(
    f: LaneFrame,
    group: UpdateGroup,
    target: str,
    values: str,
    together: Callable[[str, str, int], None],
    alone: Callable[[str, str], None],
) -> None:
    """Updates an odd number of components, whose pairs are aligned from the first on, or else from the second."""
    text, many, size = f.text, len(group.values), BYTES[MEMORY[group.ref.dtype]]
    address = text.op(f"ptrtoint ptr {target} to i64")
    late = text.op(f"and i64 {address}, {size}")
    for k in range(many // 2):
        pair = [ahead(f, "i8", p, 2 * size * k) for p in (target, values)]
        at, given = (text.op(f"getelementptr i8, ptr {p}, i64 {late}") for p in pair)
        together(at, given, 2)
    left = text.op(f"select i1 {text.op(f'icmp eq i64 {late}, 0')}, i64 {size * (many - 1)}, i64 0")
    at, given = (text.op(f"getelementptr i8, ptr {p}, i64 {left}") for p in (target, values))
    alone(at, given)


def widest_exchange(f: LaneFrame) -> int:
    """Returns the most bytes of one compare-and-swap: 16 on processors with AVX2, which also load them atomically."""
    cpu = f.target
    wide = cpu.triple.startswith("x86_64") and cpu.vector_bits >= 256 and "-cx16" not in cpu.features
    return 16 if wide else 8
