"""What the strategies of a task's accumulations need: slots of chunks, and copies of threads."""

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
    """Elements of one buffer in the slot of a chunk."""

    lane_copies: int = 1
    """Copies side by side that lanes have for themselves until the chunk ends: lane l has number `l % lane_copies`."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a chunk leaves what it has accumulated, until all chunks have run."""

    parts: tuple[SlotPart, ...]
    nbytes: int
    """A multiple of the alignment; 0 when nothing is privatised by chunks."""


@dataclass(frozen=True, slots=True)
class CopiedArray:
    """An array in the copies of a thread."""

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
class ThreadCopies:
    """What a thread may have copies of: the arrays one after another, each from a line of memory on."""

    arrays: tuple[CopiedArray, ...]
    nbytes: int
    """Whole lines; 0 when the task has shared arrays that cannot be copied, or none."""


@dataclass(frozen=True, slots=True)
class AccumulationPlan:
    """How each accumulated buffer of a task is privatised and merged."""

    ways: Privatisation
    slot: Slot
    thread_copies: ThreadCopies
    updates: int
    """Estimated accumulations of one iteration into shared arrays."""

    @property
    def is_in_slot(self) -> bool:
        """Whether all that a chunk keeps for itself is in its slot from the beginning, not in its functions."""
        return not self.ways.registers and all(part.lane_copies == 1 for part in self.slot.parts)

    @property
    def reason(self) -> str:
        """The strategies in words."""
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
    """The plan for lanes of this number."""
    updates = max(1, _updates(facts.task.body, ways.shared)) if ways.shared else 0
    return AccumulationPlan(ways, _slot(facts, ways, limits, width), _thread_copies(facts, ways), updates)


def _slot(facts: TaskFacts, ways: Privatisation, limits: AccumulationLimits, width: int) -> Slot:
    """Registers, then copies with room for an element a lane behind them, where inactive lanes go."""
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
    """All shared arrays; the task must only accumulate into each, by one operation."""
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
