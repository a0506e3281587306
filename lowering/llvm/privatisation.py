"""How the iterations of a task accumulate into memory without losing an update: decided before a line is written.

strategy      what it is
EXCLUSIVE     each iteration has elements of its own: nothing to merge
REGISTERS     privatised per lane: one place that all iterations name
CHUNK_COPY    privatised per chunk, or per block: a small array
SHARED        what is left: copies of threads, or atomics
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
"""Guess for tasks with bounds of unknown value."""


class Strategy(Enum):
    """How iterations keep out of each other's way."""

    EXCLUSIVE = auto()
    REGISTERS = auto()
    CHUNK_COPY = auto()
    SHARED = auto()


@dataclass(frozen=True, slots=True)
class Privatisation:
    """Which strategy each accumulated buffer has, or each place in it."""

    exclusive: frozenset[Var]
    registers: Mapping[Place, str]
    """Place -> operation; nobody else touches the buffer."""
    chunk_copies: Mapping[Var, str]
    """Buffer -> operation; nobody else touches it."""
    shared: Mapping[Var, str | None]
    """Buffer -> operation; None where the task does something else with it, too, or has several operations."""

    def strategy_of(self, eqn: Eqn) -> Strategy:
        """How an `accum` is made."""
        ref = reference(eqn)
        if (ref, indices_of(eqn)) in self.registers:
            return Strategy.REGISTERS
        if ref in self.chunk_copies:
            return Strategy.CHUNK_COPY
        return Strategy.EXCLUSIVE if ref in self.exclusive else Strategy.SHARED


def privatise(facts: TaskFacts, limits: AccumulationLimits) -> Privatisation:
    """The strategies of a task on a machine."""
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
    """Estimated scalar operations of the whole task."""
    iterations = trip_count(facts.task.start, facts.task.stop)
    return (_ITERATIONS if iterations is None else iterations) * max(1, facts.cost)


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of one buffer in the slot of a chunk, or of a block."""

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
