"""The sums of a task's accumulations: where each is kept until it reaches memory, so that no update is lost.

where       a sum is kept                                                           for
OWN         in memory                                                               elements of the iteration's own
REGISTERS   by each lane, or thread; then in the slot of its chunk, or block        one element of all iterations
COPY        in a copy of the array, in the slot of each chunk, or block             small arrays
SHARED      in memory that threads update at once, or in a copy of each thread      larger arrays
ATOMIC      in memory that threads update at once                                   all others

Slots are combined in order, and each element with memory once, so sums have the same bits in every run.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from lowering.tables import FIELD, round_up
from qdtrace.frozen import frozen
from qdtrace.ir.combining import identity
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, ATOMIC
from qdtrace.ir.program import Literal, ref_type

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from qdtrace.analysis.machine import AccumulationLimits
    from qdtrace.ir.program import Atom, Eqn, Task, Var
    from qdtrace.ir.types import DType

    Place = tuple[Var, tuple[Atom, ...] | None]


class Where(Enum):
    """The memory of a sum until the task ends."""

    OWN = auto()
    REGISTERS = auto()
    COPY = auto()
    SHARED = auto()
    ATOMIC = auto()


@frozen(slots=True)
class Part:
    """Elements of one buffer whose sums are, or may be, kept apart from memory."""

    ref: Var
    op: str
    where: Where
    indices: tuple[Atom, ...] | None
    """Indices of the element, equal in all iterations, or None for all elements of the buffer."""
    dtype: DType
    """The dtype of the sums: f16 and bf16 are rounded only when they reach memory."""
    offset: int = 0
    """Byte offset in the slot, or in the copies of a thread."""
    lanes: int = 1
    """Interleaved copies for lanes until the chunk ends: lane l uses copy `l % lanes`."""

    @property
    def place(self) -> Place:
        """The buffer, with the indices of the element or None."""
        return self.ref, self.indices

    @property
    def size(self) -> int:
        """The number of elements."""
        return ref_type(self.ref).size if self.indices is None else 1

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.size * BYTES[MEMORY[self.dtype]]

    @property
    def neutral(self) -> Literal:
        """The identity of the operation."""
        return identity(self.op, self.dtype)


@frozen(slots=True)
class Slot:
    """Memory of a chunk, block or thread for parts, each at its offset."""

    parts: tuple[Part, ...] = ()
    nbytes: int = 0


@frozen(slots=True)
class Sums:
    """The place of the sum of each accumulation into memory that iterations share."""

    parts: Mapping[Place, Part]
    own: frozenset[Var]
    """Buffers without parts, all of whose accumulations are into elements of the iteration's own."""
    atomic: frozenset[Var] = frozenset()
    """Buffers that the task also accesses in another way, or by several operations."""

    def part(self, eqn: Eqn) -> Part | None:
        """Returns the part that an `accum` is summed in."""
        ref = reference(eqn)
        return self.parts.get((ref, indices_of(eqn))) or self.parts.get((ref, None))

    def where(self, eqn: Eqn) -> Where:
        """Returns where an `accum` is summed."""
        if (part := self.part(eqn)) is not None:
            return part.where
        return Where.OWN if reference(eqn) in self.own else Where.ATOMIC

    def of(self, *wanted: Where) -> list[Part]:
        """Returns the parts that are kept in one of these ways."""
        return [part for part in self.parts.values() if part.where in wanted]

    def reason(self, worker: str, shared: str) -> str:
        """Returns the sums in words, for reports: of copies of a `worker`, and of arrays that are `shared`."""
        words = [
            (len(self.of(Where.REGISTERS)), "sums in registers"),
            (len(self.of(Where.COPY)), f"arrays with copies a {worker}"),
            (len(self.of(Where.SHARED)) + len(self.atomic), f"arrays with {shared}"),
        ]
        return "".join(f", {count} {what}" for count, what in words if count)


def find_sums(facts: TaskFacts, limits: AccumulationLimits) -> Sums:
    """Returns the sums of a task on a machine."""
    own = frozenset(facts.effects) if facts.task.kind == "serial" else facts.exclusive_accums
    parts: dict[Place, Part] = {}
    for ref, op in facts.accumulated.items():
        places = {i: None for i in map(indices_of, facts.effects[ref]) if facts.is_constant(i)}
        if len(places) <= limits.registers:
            parts |= {(ref, i): Part(ref, op, Where.REGISTERS, i, compute_dtype(ref.dtype)) for i in places}
    atomic: set[Var] = set()
    room = limits.chunk_bytes
    for ref, eqns in facts.effects.items():
        if ref in own or all(e.primitive is not ACCUM or (ref, indices_of(e)) in parts for e in eqns):
            continue
        op = facts.accumulated.get(ref)
        if op is None:
            atomic.add(ref)
            continue
        part = Part(ref, op, Where.COPY, None, compute_dtype(ref.dtype))
        if 0 < part.nbytes <= room and facts.work >= limits.copy_work * part.size:
            room -= part.nbytes
        else:
            part = replace(part, where=Where.SHARED, dtype=ref.dtype)
        parts[part.place] = part
    return Sums(parts, own, frozenset(atomic))


def unordered_updates(facts: TaskFacts, sums: Sums, *among: Where) -> list[Eqn]:
    """Returns the updates whose results depend on the order of threads, of sums that are kept in one of these ways:
    sums of integers do not."""
    eqns = [e for eqns in facts.effects.values() for e in eqns] if facts.task.kind != "serial" else []
    accums = [e for e in eqns if e.primitive is ACCUM and sums.where(e) in among]
    inexact = [e for e in accums if sums.where(e) is Where.ATOMIC or reference(e).dtype.is_float]
    return [e for e in eqns if e.primitive is ATOMIC] + inexact


def copy_sizes(task: Task, limits: AccumulationLimits) -> list[int] | None:
    """Returns the bytes of each array's copy of a block, or None if a task has no sums apart from memory."""
    sums = find_sums(TaskFacts(task), limits)
    return [part.nbytes for part in sums.of(Where.COPY)] if sums.of(Where.REGISTERS, Where.COPY) else None


def lay_out(parts: Iterable[Part], alignment: int = FIELD, *, copies: int = 1, spare: int = 0) -> Slot:
    """Returns parts one behind another: so many copies of each element, and spare elements behind each array."""
    placed: list[Part] = []
    end = 0
    for part in parts:
        placed.append(replace(part, offset=end))
        more = spare * BYTES[MEMORY[part.dtype]] if part.indices is None else 0
        end += round_up(part.nbytes * copies + more, alignment)
    return Slot(tuple(placed), end)


def in_turns(parts: Iterable[Part]) -> list[list[Part]]:
    """Returns parts in the order in which they are combined with memory: those of one turn share no element."""
    turns: list[list[Part]] = []
    for part in parts:
        shared = (k for k, turn in enumerate(turns) if any(_may_share(other, part) for other in turn))
        turn = max(shared, default=-1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(part)
    return turns


def _may_share(a: Part, b: Part) -> bool:
    """Returns whether two parts may share an element."""
    if a.ref is not b.ref or a.indices is None or b.indices is None:
        return a.ref is b.ref
    pairs = zip(a.indices, b.indices, strict=True)
    return not any(isinstance(x, Literal) and isinstance(y, Literal) and x.value != y.value for x, y in pairs)
