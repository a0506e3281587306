"""Privatisation of accumulations, decided before a line is written, so that no update is lost.

strategy      what it is
EXCLUSIVE     each iteration has elements of its own: nothing to merge
REGISTERS     privatised per lane: one element that all iterations share
CHUNK_COPY    privatised per chunk, or per block: a small array
SHARED        all others: copies of threads, or atomics
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from lowering.llvm.facts import reference
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Atom, Eqn, Var, ref_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.facts import TaskFacts
    from qdtrace.analysis.machine import AccumulationLimits
    from qdtrace.ir.types import DType

    Place = tuple[Var, tuple[Atom, ...]]

_ITERATIONS = 4096
"""Assumed trip count of a task with unknown bounds."""


class Strategy(Enum):
    """Strategies that keep accumulations of different iterations from losing updates."""

    EXCLUSIVE = auto()
    REGISTERS = auto()
    CHUNK_COPY = auto()
    SHARED = auto()


@dataclass(frozen=True, slots=True)
class Privatisation:
    """The strategy of each accumulated buffer, or of each place in it."""

    exclusive: frozenset[Var]
    registers: Mapping[Place, str]
    """Operation by place; the task accesses the buffer in no other way."""
    chunk_copies: Mapping[Var, str]
    """Operation by buffer; the task accesses it in no other way."""
    shared: Mapping[Var, str | None]
    """Operation by buffer; None if the task has several operations on it, or other accesses."""

    def strategy_of(self, eqn: Eqn) -> Strategy:
        """Returns the strategy of an `accum`."""
        ref = reference(eqn)
        if (ref, indices_of(eqn)) in self.registers:
            return Strategy.REGISTERS
        if ref in self.chunk_copies:
            return Strategy.CHUNK_COPY
        return Strategy.EXCLUSIVE if ref in self.exclusive else Strategy.SHARED


def privatise(facts: TaskFacts, limits: AccumulationLimits) -> Privatisation:
    """Returns the strategies of a task on a machine."""
    serial = facts.task.kind == "serial"
    exclusive = frozenset(facts.effects) if serial else facts.exclusive_accums
    registers: dict[Place, str] = {}
    for ref, op in facts.accumulated.items():
        places = {(ref, indices_of(e)): op for e in facts.effects[ref] if facts.is_constant(indices_of(e))}
        if len(places) <= limits.registers:
            registers.update(places)
    copies: dict[Var, str] = {}
    room, work = limits.chunk_bytes, work_of(facts)
    for ref, op in facts.accumulated.items():
        if ref in exclusive or all((ref, indices_of(e)) in registers for e in facts.effects[ref]):
            continue
        size = ref_type(ref).size * BYTES[MEMORY[compute_dtype(ref.dtype)]]
        if 0 < size <= room and work >= limits.copy_work * ref_type(ref).size:
            copies[ref] = op
            room -= size
    shared: dict[Var, str | None] = {}
    for ref, eqns in facts.effects.items():
        if ref in exclusive or ref in copies:
            continue
        if any(e.primitive is ACCUM and (ref, indices_of(e)) not in registers for e in eqns):
            shared[ref] = facts.accumulated.get(ref)
    return Privatisation(exclusive, registers, copies, shared)


def work_of(facts: TaskFacts) -> int:
    """Returns the estimated scalar operations of the whole task."""
    iterations = trip_count(facts.task.start, facts.task.stop)
    return (_ITERATIONS if iterations is None else iterations) * max(1, facts.cost)


@dataclass(frozen=True, slots=True)
class Part:
    """Accumulated elements of one buffer in the slot of a chunk, or of a block."""

    ref: Var
    op: str
    indices: tuple[Atom, ...] | None
    """Indices of the element, equal in all iterations, or None for all elements of the buffer."""
    offset: int
    """Byte offset in the slot."""

    @property
    def dtype(self) -> DType:
        """The dtype of the sums: f16 and bf16 are rounded only when they reach memory."""
        return compute_dtype(self.ref.dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return ref_type(self.ref).size if self.indices is None else 1
