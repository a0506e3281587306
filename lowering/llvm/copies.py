"""Copies of large arrays: where the launcher gives threads copies to accumulate into, `qd_merge` adds them up.

A copy holds the arrays of the task one after another, each from a line of memory on. `qd_merge(job, lo, hi, slot)`
merges lines lo .. hi-1 of all copies, in their order, into the arrays; so it is cut into chunks like a task. The job
has the references, the copies and their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.addresses import Global, ahead
from lowering.llvm.combining import combine
from lowering.llvm.partials import load_elements, store_elements
from lowering.llvm.types import BYTES, MEMORY
from qdtrace.ir.combining import identity
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.frame import Frame
    from lowering.llvm.ops import Ops
    from qdtrace.ir.program import Var

LINE = 64
UNROLL = 4


@dataclass(frozen=True, slots=True)
class CopiedArray:
    """An array in a copy."""

    ref: Var
    op: str
    number: int
    """Of the reference, among those of the task."""
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return ref_type(self.ref).size * BYTES[MEMORY[self.ref.dtype]]

    @property
    def neutral(self) -> bytes:
        """An element that changes nothing."""
        return identity(self.op, self.ref.dtype).value.tobytes()


@dataclass(frozen=True, slots=True)
class Copies:
    """What a copy holds."""

    arrays: tuple[CopiedArray, ...]
    nbytes: int
    """Whole lines; 0 when the task has arrays that cannot be copied, or none."""


def plan_copies(facts: TaskFacts) -> Copies:
    """A copy of all arrays that need locks; the task must only accumulate into each, by one operation."""
    arrays: list[CopiedArray] = []
    end = 0
    for ref, op in facts.shared.items():
        if op is None:
            return Copies((), 0)
        arrays.append(CopiedArray(ref, op, facts.refs.index(ref), end))
        end += -(-arrays[-1].nbytes // LINE) * LINE
    return Copies(tuple(arrays), end)


def emit_merge(f: Frame, copies: Copies) -> None:
    """The body of `qd_merge`; the references are open."""
    text = f.text
    first = text.op(f"load ptr, ptr {ahead(f, 'i8', '%job', 8)}")
    count = text.op(f"load i64, ptr {ahead(f, 'i8', '%job', 16)}")
    for array in copies.arrays:
        low, high = (_element(f, array, line) for line in ("%lo", "%hi"))
        length = text.op(f"sub i64 {high}, {low}")
        whole = text.op(f"add i64 {low}, {text.op(f'and i64 {length}, {-f.width}')}")
        with text.counted("0", count, 1) as k, f.region():
            copy = text.op(f"getelementptr i8, ptr {first}, i64 {text.op(f'mul i64 {k}, {copies.nbytes}')}")
            more = Global(ahead(f, "i8", copy, array.offset), ref_type(array.ref), "", "")
            with text.counted(low, whole, f.width, UNROLL) as n, f.region():
                _accumulate(f, f.vector, array, more, n)
            with text.counted(whole, high, 1) as n, f.region():
                _accumulate(f, f.scalar, array, more, n)


def _element(f: Frame, array: CopiedArray, line: str) -> str:
    """The first element of the array in that line or after it, and not behind its end."""
    text = f.text
    for name in ("smax", "smin"):
        text.module.declare(f"llvm.{name}.i64", "i64", "i64, i64")
    at = text.op(f"sub i64 {text.op(f'mul i64 {line}, {LINE}')}, {array.offset}")
    at = text.op(f"call i64 @llvm.smax.i64(i64 {at}, i64 0)")
    at = text.op(f"call i64 @llvm.smin.i64(i64 {at}, i64 {array.nbytes})")
    return text.op(f"udiv exact i64 {at}, {BYTES[MEMORY[array.ref.dtype]]}")


def _accumulate(f: Frame, o: Ops, array: CopiedArray, more: Global, n: str) -> None:
    into, d = f.globals[array.ref], array.ref.dtype
    total = combine(o, array.op, d, load_elements(f, o, into, n), load_elements(f, o, more, n))
    store_elements(f, o, into, n, total)
