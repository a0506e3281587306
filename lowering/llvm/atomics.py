"""Atomic operations on memory that other threads may change: on one element, or on a record at once.

f16, bf16, bool, minima of floats and products have no instruction; they use a compare-and-exchange loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.combining import combine
from lowering.llvm.memory import from_memory, to_memory
from lowering.llvm.types import BYTES, MEMORY, REGISTER, SMALL_FLOATS
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops

_NATIVE = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exchange": "xchg"}


def atomic_scalar(f: Frame, op: str, d: DType, memory: GlobalMemory, pointer: str, values: list[str]) -> str:
    """Emits one atomic operation; returns the old value."""
    o, kind = f.scalar, MEMORY[d]
    special = d in SMALL_FLOATS or d is DType.bool
    if op == "cas":
        return _compare_and_swap(f, d, memory, pointer, *values)
    if op == "exchange" or not special:
        native = _native_name(op, d)
        if native is not None:
            raw = to_memory(o, d, values[0])
            order = f"{scope(f)}monotonic, align {BYTES[kind]}{memory.alias}{_promises(f)}"
            return from_memory(o, d, f.text.op(f"atomicrmw {native} ptr {pointer}, {kind} {raw} {order}"))
    return _exchange_loop(f, d, memory, pointer, lambda old: combine(o, op, d, old, values[0]))


def scope(f: Frame) -> str:
    """Returns the sync scope of atomic instructions, or nothing for all threads of the system."""
    return f'syncscope("{f.target.atomic_scope}") ' if f.target.atomic_scope else ""


def _promises(f: Frame) -> str:
    """Returns metadata without which LLVM expands an atomic instruction to a loop."""
    return "".join(f', !{name} {f.text.module.shared_node("!{}")}' for name in f.target.atomic_promises)


def _native_name(op: str, d: DType) -> str | None:
    if op in ("min", "max"):
        if d.is_float:
            return None
        return op if d.is_signed else "u" + op
    if op == "add" and d.is_float:
        return "fadd"
    return _NATIVE.get(op)


def _integer(d: DType) -> str:
    return f"i{d.itemsize * 8}"


def _as_bits(o: Ops, d: DType, value: str) -> str:
    raw = to_memory(o, d, value)
    return o.cast("bitcast", MEMORY[d], raw, _integer(d))


def _from_bits(o: Ops, d: DType, bits: str) -> str:
    return from_memory(o, d, o.cast("bitcast", _integer(d), bits, MEMORY[d]))


def _open_swap(
    f: Frame, kind: str, nbytes: int, memory: GlobalMemory, pointer: str
) -> tuple[str, Callable[[str], None]]:
    """Begins a loop that exchanges the bits in memory until no other thread did so in between. Returns the bits found,
    and a function that ends the loop, given the new bits."""
    text, how = f.text, f"align {nbytes}{memory.alias}"
    first = text.op(f"load atomic {kind}, ptr {pointer} {scope(f)}monotonic, {how}")
    loop, done, before = text.fresh_label("swap"), text.fresh_label("swapped"), text.label
    text.jump(loop)
    text.begin(loop)
    bits, hole = text.name(), text.hole()

    def close(new: str) -> None:
        order = f"{scope(f)}monotonic monotonic, {how}"
        pair = text.op(f"cmpxchg weak ptr {pointer}, {kind} {bits}, {kind} {new} {order}")
        found = text.op(f"extractvalue {{ {kind}, i1 }} {pair}, 0")
        happened = text.op(f"extractvalue {{ {kind}, i1 }} {pair}, 1")
        text.fill(hole, f"{bits} = phi {kind} [ {first}, %{before} ], [ {found}, %{text.label} ]")
        text.branch(happened, done, loop)
        text.begin(done)

    return bits, close


def _exchange_loop(f: Frame, d: DType, memory: GlobalMemory, pointer: str, make: Callable[[str], str]) -> str:
    """Emits a loop that replaces the element by `make` of it; returns the old value."""
    bits, close = _open_swap(f, _integer(d), d.itemsize, memory, pointer)
    old = _from_bits(f.scalar, d, bits)
    close(_as_bits(f.scalar, d, make(old)))
    return old


def _compare_and_swap(f: Frame, d: DType, memory: GlobalMemory, pointer: str, expected: str, new: str) -> str:
    """Emits a store of `new` if the element has the bits of `expected`; returns the old value."""
    kind = _integer(d)
    pair = f.text.op(
        f"cmpxchg ptr {pointer}, {kind} {_as_bits(f.scalar, d, expected)}, {kind} {_as_bits(f.scalar, d, new)} "
        f"{scope(f)}acq_rel monotonic, align {d.itemsize}{memory.alias}"
    )
    return _from_bits(f.scalar, d, f.text.op(f"extractvalue {{ {kind}, i1 }} {pair}, 0"))


def exchange_record(f: Frame, o: Ops, d: DType, memory: GlobalMemory, pointer: str, make: Callable[[str], str]) -> None:
    """Emits a loop that replaces the elements at an aligned pointer, one per lane of `o`, at once by `make` of them."""
    nbytes = o.lanes.width * BYTES[REGISTER[d]]
    kind = f"i{8 * nbytes}"
    bits, close = _open_swap(f, kind, nbytes, memory, pointer)
    new = make(f.text.op(f"bitcast {kind} {bits} to {o.type(d)}"))
    close(f.text.op(f"bitcast {o.type(d)} {new} to {kind}"))
