"""The memory that the strategies of a task's accumulations need: slots of chunks, and copies of threads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.facts import reference
from lowering.llvm.privatisation import Part, work_of
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from lowering.tables import CACHE_LINE, round_up
from qdtrace.analysis.cost import GUESS, trips_of
from qdtrace.ir.combining import identity
from qdtrace.ir.primitives import ACCUM, FOR, WHILE
from qdtrace.ir.program import Block, Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Collection

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.privatisation import Privatisation
    from qdtrace.analysis.machine import AccumulationLimits

_ELEMENT_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class SlotPart(Part):
    """Accumulated elements of one buffer in the slot of a chunk."""

    lane_copies: int = 1
    """Interleaved copies for lanes until the chunk ends: lane l uses copy `l % lane_copies`."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory that keeps the accumulated values of a chunk until all chunks have run."""

    parts: tuple[SlotPart, ...]
    nbytes: int
    """Size, a multiple of a cache line; 0 if nothing is privatised per chunk."""


@dataclass(frozen=True, slots=True)
class CopiedArray:
    """An array in the copies of a thread."""

    ref: Var
    op: str
    number: int
    """Number of the reference among those of the task."""
    offset: int

    @property
    def nbytes(self) -> int:
        """The bytes of the array."""
        return ref_type(self.ref).size * BYTES[MEMORY[self.ref.dtype]]

    @property
    def neutral(self) -> bytes:
        """The bytes of the operation's identity."""
        return identity(self.op, self.ref.dtype).value.tobytes()


@dataclass(frozen=True, slots=True)
class ThreadCopies:
    """The arrays that a thread may have copies of, in order, each beginning at a cache line."""

    arrays: tuple[CopiedArray, ...]
    nbytes: int
    """Size in whole cache lines; 0 if the task has no shared arrays, or one that cannot be copied."""


@dataclass(frozen=True, slots=True)
class AccumulationPlan:
    """The privatisation of each accumulated buffer of a task, with its memory."""

    ways: Privatisation
    slot: Slot
    thread_copies: ThreadCopies
    updates: int
    """Estimated accumulations of one iteration into shared arrays."""

    @property
    def is_in_slot(self) -> bool:
        """Returns whether a chunk's private sums are all in its slot from the start, none in registers or the stack."""
        return not self.ways.registers and all(part.lane_copies == 1 for part in self.slot.parts)

    @property
    def reason(self) -> str:
        """The strategies in words, for reports."""
        ways = self.ways
        large = "arrays with copies a thread or locks" if self.thread_copies.nbytes else "arrays with locks"
        parts = [
            (len(ways.registers), "sums in registers"),
            (len(ways.chunk_copies), "arrays with copies a chunk"),
            (len(ways.shared), large),
        ]
        return "".join(f", {count} {what}" for count, what in parts if count)


def plan_accumulation(
    facts: TaskFacts, ways: Privatisation, limits: AccumulationLimits, width: int
) -> AccumulationPlan:
    """Returns the plan for vectors of `width` lanes."""
    updates = max(1, _updates(facts.task.body, ways.shared)) if ways.shared else 0
    return AccumulationPlan(ways, _slot(facts, ways, limits, width), _thread_copies(facts, ways), updates)


def _slot(facts: TaskFacts, ways: Privatisation, limits: AccumulationLimits, width: int) -> Slot:
    """Returns the slot: sums of registers, then copies, each with a spare element per lane for inactive lanes."""
    if facts.task.kind == "serial":
        return Slot((), 0)
    parts: list[SlotPart] = []
    end, room = 0, limits.lane_bytes
    for (ref, indices), op in ways.registers.items():
        parts.append(SlotPart(ref, op, indices, end))
        end += round_up(BYTES[MEMORY[parts[-1].dtype]], _ELEMENT_ALIGNMENT)
    for ref, op in ways.chunk_copies.items():
        size, nbytes = ref_type(ref).size, BYTES[MEMORY[compute_dtype(ref.dtype)]]
        copies = width
        while copies > 1 and (size * nbytes * copies > room or work_of(facts) < limits.copy_work * size * copies):
            copies //= 2
        room -= size * nbytes * copies if copies > 1 else 0
        parts.append(SlotPart(ref, op, None, end, copies))
        end += round_up((size + width) * nbytes, _ELEMENT_ALIGNMENT)
    return Slot(tuple(parts), round_up(end, CACHE_LINE))


def _thread_copies(facts: TaskFacts, ways: Privatisation) -> ThreadCopies:
    """Returns copies of all shared arrays, or none unless the task only accumulates into each, by one operation."""
    arrays: list[CopiedArray] = []
    end = 0
    for ref, op in ways.shared.items():
        if op is None:
            return ThreadCopies((), 0)
        arrays.append(CopiedArray(ref, op, facts.refs.index(ref), end))
        end += round_up(arrays[-1].nbytes, CACHE_LINE)
    return ThreadCopies(tuple(arrays), end)


def _updates(block: Block, refs: Collection[Var]) -> int:
    total = 0
    for eqn in block.eqns:
        if eqn.primitive is ACCUM:
            total += reference(eqn) in refs
        else:
            times = trips_of(eqn) if eqn.primitive is FOR else GUESS if eqn.primitive is WHILE else 1
            total += times * sum(_updates(b, refs) for b in eqn.blocks)
    return total
