"""Partial results: what a chunk of iterations reduces lies in a slot of its own until all chunks have run.

A slot holds the elements of each part side by side. `qd_combine` combines slots in the order of the chunks and each
element with memory once. So nothing depends on which thread ran which chunk, and no update needs an atomic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lowering.llvm.addresses import Global, ahead, locate
from lowering.llvm.combining import combine
from lowering.llvm.memory import from_memory, to_memory
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from qdtrace.ir.combining import identity
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Atom, Var
    from qdtrace.ir.types import DType

SLOT_ALIGNMENT = 64
_ELEMENT_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of one reference in a slot."""

    ref: Var
    op: str
    indices: tuple[Atom, ...] | None
    """Which element, the same for all iterations; None when it is all of them."""
    offset: int
    """Bytes into the slot."""

    @property
    def dtype(self) -> DType:
        """What is summed: f16 and bf16 are rounded only when they reach memory."""
        return compute_dtype(self.ref.dtype)

    @property
    def size(self) -> int:
        """Elements."""
        return ref_type(self.ref).size if self.indices is None else 1


@dataclass(frozen=True, slots=True)
class Partials:
    """The slot of a chunk."""

    parts: tuple[Part, ...]
    nbytes: int
    """A multiple of the alignment; 0 when the task does not reduce."""


def plan_partials(facts: TaskFacts, width: int) -> Partials:
    """What a chunk of a task keeps in its slot; copies have room for an element a lane behind them."""
    parts: list[Part] = []
    end = 0
    if facts.task.kind == "serial":
        return Partials((), 0)
    wanted: list[tuple[Var, str, tuple[Atom, ...] | None]] = [
        *((ref, op, indices) for (ref, indices), op in facts.reductions.items()),
        *((ref, op, None) for ref, op in facts.copied.items()),
    ]
    for ref, op, indices in wanted:
        part = Part(ref, op, indices, end)
        parts.append(part)
        elements = part.size if indices is not None else part.size + width
        end += _round_up(elements * BYTES[MEMORY[part.dtype]], _ELEMENT_ALIGNMENT)
    return Partials(tuple(parts), _round_up(end, SLOT_ALIGNMENT))


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


# Elements one after another: vectors, then what is left


def for_elements(f: Frame, size: int, make: Callable[[Ops, str], None]) -> None:
    """`make(ops, k)` for elements 0 .. size-1: `ops` are of as many elements from k on as it takes."""
    whole = size // f.width * f.width
    if whole:
        with f.text.counted("0", str(whole), f.width) as k, f.region():
            make(f.vector, k)
    if whole < size:
        with f.text.counted(str(whole), str(size), 1) as k, f.region():
            make(f.scalar, k)


def load_elements(f: Frame, o: Ops, ref: Global, k: str) -> str:
    """Elements from number k on."""
    d = ref.type.dtype
    kind = MEMORY[d]
    raw = f.text.op(f"load {o.vector(kind)}, ptr {_element(f, ref, k)}, align {BYTES[kind]}{ref.alias}")
    return from_memory(o, d, raw)


def store_elements(f: Frame, o: Ops, ref: Global, k: str, value: str) -> None:
    """Elements from number k on."""
    kind = MEMORY[ref.type.dtype]
    raw = to_memory(o, ref.type.dtype, value)
    f.text.do(f"store {o.vector(kind)} {raw}, ptr {_element(f, ref, k)}, align {BYTES[kind]}{ref.alias}")


def _element(f: Frame, ref: Global, k: str) -> str:
    return f.text.op(f"getelementptr {MEMORY[ref.type.dtype]}, ptr {ref.pointer}, i64 {k}")


def clear_elements(f: Frame, ref: Global, size: int, op: str) -> None:
    """Makes elements 0 .. size-1 the identity of the operation."""
    d = ref.type.dtype
    for_elements(f, size, lambda o, k: store_elements(f, o, ref, k, o.constant(identity(op, d).value, d)))


# The end of a task


def emit_combine(f: Frame, partials: Partials) -> None:
    """All slots into the first, in order; then the first into memory. Arguments: refs, slots, count."""
    for part in partials.parts:
        first = in_slot(f, part, "%slots", "")
        with f.text.counted("1", "%count", 1) as k, f.region():
            following = f.text.op(f"mul i64 {k}, {partials.nbytes}")
            other = in_slot(f, part, f.text.op(f"getelementptr i8, ptr %slots, i64 {following}"), "")
            _accumulate(f, part, first, other, part.dtype)
    for part in partials.parts:
        memory = f.globals[part.ref]
        if part.indices is not None:
            memory = Global(locate(f, memory, part.indices).pointer, memory.type, memory.alias, "")
        _accumulate(f, part, memory, in_slot(f, part, "%slots", ""), part.ref.dtype)


def in_slot(f: Frame, part: Part, slot: str, alias: str) -> Global:
    """The elements of a part in a slot."""
    type_ = replace(ref_type(part.ref), dtype=part.dtype)
    return Global(ahead(f, "i8", slot, part.offset), type_, alias, "")


def _accumulate(f: Frame, part: Part, into: Global, more: Global, d: DType) -> None:
    def make(o: Ops, k: str) -> None:
        total = combine(o, part.op, d, load_elements(f, o, into, k), load_elements(f, o, more, k))
        store_elements(f, o, into, k, total)

    for_elements(f, part.size, make)
