"""`accum` and `atomic` of threads, and the reduction of what blocks have accumulated.

A block stores its sums in its slot of the scratch; `qd_combine` combines the slots of all blocks in order, one block
per element, and each element with memory once. So sums have the same bits in each run. The only block of a series
combines its sums with memory itself.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.addresses import ahead, element_pointer, in_range
from lowering.llvm.atomics import atomic_scalar
from lowering.llvm.combining import combine, updated
from lowering.llvm.descriptions import GlobalMemory
from lowering.llvm.memory import from_memory, load_scalar, store_scalar, to_memory
from lowering.llvm.private import load_private, store_private
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from lowering.llvm.vectors import Value
from lowering.plan.sums import Where
from lowering.simt.devices import SHARED
from lowering.tables import CACHE_LINE, FIELD, round_up
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lowering.plan.sums import Part
    from lowering.simt.frame import KernelFrame
    from qdtrace.ir.program import Eqn
    from qdtrace.ir.types import DType


def accum(f: KernelFrame, eqn: Eqn) -> None:
    """Emits `accum` by the strategy that the plan chose for it."""
    ref, value, indices, op = reference(eqn), f.scalar_of(eqn.invars[1]), indices_of(eqn), eqn.params["op"]
    d = ref.dtype
    if ref in f.privates:
        private = f.privates[ref]
        new = updated(f, op, load_private(f, private, indices), eqn.invars[1:2])
        store_private(f, private, new, indices)
        return
    match f.plan.sums.where(eqn):
        case Where.REGISTERS:
            slot = f.sums[ref, indices]
            _write(f, slot, compute_dtype(d), combine(f.scalar, op, compute_dtype(d), _read(f, slot, d), value))
        case Where.COPY:
            copy = f.copies[ref]
            atomic_scalar(f, op, copy.type.dtype, copy, element_pointer(f, copy, indices), [value])
        case Where.OWN:
            _into_memory(f, f.globals[ref], element_pointer(f, f.globals[ref], indices), op, value)
        case Where.ATOMIC:
            atomic_scalar(f, op, d, f.globals[ref], element_pointer(f, f.globals[ref], indices), [value])
        case Where.SHARED:  # made with its group
            pass


def _into_memory(f: KernelFrame, memory: GlobalMemory, pointer: str, op: str, value: str) -> None:
    """Reads, combines and writes an element that nobody else touches."""
    old = load_scalar(f, memory, pointer)
    store_scalar(f, memory, pointer, combine(f.scalar, op, memory.type.dtype, old, value))


def atomic(f: KernelFrame, eqn: Eqn) -> None:
    """Emits `atomic`: an update that returns the old value."""
    op, out, ref = eqn.params["op"], eqn.outvars[0], reference(eqn)
    count = 2 if op == "cas" else 1
    values, indices = eqn.invars[1 : 1 + count], eqn.invars[1 + count :]
    if ref in f.privates:  # which no other thread sees
        f.env[out] = old = load_private(f, f.privates[ref], indices)
        store_private(f, f.privates[ref], updated(f, op, old, values), indices)
        return
    memory = f.globals[ref]
    pointer = element_pointer(f, memory, indices)
    old = atomic_scalar(f, op, out.dtype, memory, pointer, [f.scalar_of(a) for a in values])
    f.env[out] = Value(out.dtype, scalar=old)


# Sums of blocks


def open_parts(f: KernelFrame) -> None:
    """Creates the sums of the thread and the copies of the block, and fills them with the identity."""
    for part in f.plan.slot.parts:
        neutral = f.scalar.constant(part.neutral.value, part.dtype)
        if part.indices is not None:
            slot = f.sums[part.place] = f.text.slot(MEMORY[part.dtype])
            _write(f, slot, part.dtype, neutral)
            continue
        type_ = replace(ref_type(part.ref), dtype=part.dtype)
        kind = MEMORY[part.dtype]
        place = _shared(f, f"@qd_copy_{len(f.text.module.helpers)}", type_.size * BYTES[kind])
        copy = f.copies[part.ref] = GlobalMemory(place, type_, "", "")
        with _elements(f, type_.size) as k:
            store_scalar(f, copy, f.text.op(f"getelementptr {kind}, ptr {copy.pointer}, i64 {k}"), neutral)
    if f.copies:
        f.wait()


def close_parts(f: KernelFrame) -> None:
    """Stores the sums of all threads, and the copies, in the slot of the block, or combines a series' with memory."""
    text = f.text
    if f.copies:
        f.wait()
    if f.plan.in_series:
        _parts_into_memory(f)
        return
    block = text.op(f"zext i32 {f.block()} to i64")
    at = text.op(f"add i64 {text.op(f'mul i64 {block}, {f.plan.slot.nbytes}')}, {f.plan.slots_at}")
    slot = text.op(f"getelementptr i8, ptr %scratch, i64 {at}")
    for part in f.plan.slot.parts:
        target = _in_slot(f, part, slot)
        if part.indices is not None:
            total = reduce_block(f, part.op, part.dtype, _read(f, f.sums[part.place], part.dtype))
            with _first_thread(f):
                store_scalar(f, target, target.pointer, total)
            continue
        copy, kind = f.copies[part.ref], MEMORY[part.dtype]
        with _elements(f, part.size) as k:
            here, there = (text.op(f"getelementptr {kind}, ptr {m.pointer}, i64 {k}") for m in (copy, target))
            store_scalar(f, target, there, load_scalar(f, copy, here))


def _parts_into_memory(f: KernelFrame) -> None:
    later = [part for turn in f.plan.combines[1:] for part in turn]
    for part in f.plan.slot.parts:
        if part.indices is not None:
            total = reduce_block(f, part.op, part.dtype, _read(f, f.sums[part.place], part.dtype))
            with _first_thread(f):
                _element_into_memory(f, part, "0", total)
            continue
        if part in later:
            f.wait()  # for the first thread, which may have updated the same elements
        copy, kind = f.copies[part.ref], MEMORY[part.dtype]
        with _elements(f, part.size) as k:
            total = load_scalar(f, copy, f.text.op(f"getelementptr {kind}, ptr {copy.pointer}, i64 {k}"))
            _element_into_memory(f, part, k, total)


def _element_into_memory(f: KernelFrame, part: Part, k: str, total: str) -> None:
    """Combines `total` with element `k` of the part in memory."""
    memory = f.globals[part.ref]  # f16 and bf16 are summed as f32, and rounded here
    if part.indices is None:
        pointer = f.text.op(f"getelementptr {MEMORY[part.ref.dtype]}, ptr {memory.pointer}, i64 {k}")
        _into_memory(f, memory, pointer, part.op, total)
        return
    # an element out of range got no accumulation
    with f.text.when(in_range(f, memory, part.indices)), f.region():
        _into_memory(f, memory, element_pointer(f, memory, part.indices), part.op, total)


def emit_combine(f: KernelFrame, parts: Sequence[Part]) -> None:
    """Combines one element of one part, chosen by the block's number: all slots in order, then memory."""
    text, plan = f.text, f.plan
    block, thread = (text.op(f"zext i32 {x} to i64") for x in (f.block(), f.thread()))
    first = 0
    for part in parts:
        with text.when(text.op(f"icmp ult i64 {text.op(f'sub i64 {block}, {first}')}, {part.size}")), f.region():
            k = text.op(f"sub i64 {block}, {first}")
            sums = text.slot(MEMORY[part.dtype])
            _write(f, sums, part.dtype, f.scalar.constant(part.neutral.value, part.dtype))
            with text.counted(thread, str(plan.blocks), plan.threads) as number, f.region():
                at = text.op(f"add i64 {text.op(f'mul i64 {number}, {plan.slot.nbytes}')}, {plan.slots_at}")
                memory = _in_slot(f, part, text.op(f"getelementptr i8, ptr %scratch, i64 {at}"))
                pointer = text.op(f"getelementptr {MEMORY[part.dtype]}, ptr {memory.pointer}, i64 {k}")
                new = load_scalar(f, memory, pointer)
                _write(f, sums, part.dtype, combine(f.scalar, part.op, part.dtype, _read(f, sums, part.dtype), new))
            total = reduce_block(f, part.op, part.dtype, _read(f, sums, part.dtype))
            with _first_thread(f):
                _element_into_memory(f, part, k, total)
        first += part.size


def reduce_block(f: KernelFrame, op: str, d: DType, value: str) -> str:
    """Combines the values of all threads of the block in a tree of fixed shape; thread 0 gets the result.

    All sums of the module use the same shared memory in turn: a thread has the same place in it for every dtype, and
    after the last wait no thread reads another's place, so the next sum needs no wait before it.
    """
    text, kind = f.text, f"[{FIELD} x i8]"
    held = _shared(f, "@qd_meeting", f.plan.threads * FIELD)
    thread = text.op(f"zext i32 {f.thread()} to i64")
    own = text.op(f"getelementptr {kind}, ptr {held}, i64 {thread}")
    _write(f, own, d, value)
    f.wait()
    left = f.plan.threads
    while left > 1:
        half = -(-left // 2)
        other = text.op(f"add i64 {thread}, {half}")
        with text.when(text.op(f"icmp ult i64 {other}, {left}")):
            there = text.op(f"getelementptr {kind}, ptr {held}, i64 {other}")
            _write(f, own, d, combine(f.scalar, op, d, _read(f, own, d), _read(f, there, d)))
        f.wait()
        left = half
    return _read(f, own, d)


def _in_slot(f: KernelFrame, part: Part, slot: str) -> GlobalMemory:
    type_ = replace(ref_type(part.ref), dtype=part.dtype)
    return GlobalMemory(ahead(f, "i8", slot, part.offset), type_, "", "")


def _shared(f: KernelFrame, name: str, nbytes: int) -> str:
    """Returns a plain pointer to shared memory of that name. It has whole words, as atomics of one and two bytes
    exchange the word around."""
    space, type_ = f"addrspace({SHARED})", f"[{round_up(nbytes, FIELD)} x i8]"
    f.text.module.helpers[name] = f"{name} = internal {space} global {type_} undef, align {CACHE_LINE}"
    return f.text.op(f"addrspacecast ptr {space} {name} to ptr")


@contextmanager
def _elements(f: KernelFrame, size: int) -> Generator[str]:
    """Opens a loop over elements that the threads of the block share; yields the element's number as i64."""
    thread = f.text.op(f"zext i32 {f.thread()} to i64")
    with f.text.counted(thread, str(size), f.plan.threads) as k, f.region():
        yield k


@contextmanager
def _first_thread(f: KernelFrame) -> Generator[None]:
    with f.text.when(f.text.op(f"icmp eq i32 {f.thread()}, 0")), f.region():
        yield


def _read(f: KernelFrame, slot: str, d: DType) -> str:
    d = compute_dtype(d)
    return from_memory(f.scalar, d, f.text.op(f"load {MEMORY[d]}, ptr {slot}, align {BYTES[MEMORY[d]]}"))


def _write(f: KernelFrame, slot: str, d: DType, value: str) -> None:
    f.text.do(f"store {MEMORY[d]} {to_memory(f.scalar, d, value)}, ptr {slot}, align {BYTES[MEMORY[d]]}")
