"""The plan of a task's Triton kernels, decided before a line is written.

form     task                           kernels
stream   independent iterations         a block of iterations per program
sums     accumulates into few elements  a fixed number of programs walk over the blocks; each stores its sums in a slot
                                        of the scratch; `qd_combine` combines the slots, one program per element
serial   one iteration                  one program of scalars (a scan, which is serial too, has a plan of its own)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts, reference
from lowering.llvm.privatisation import Strategy, privatise
from lowering.llvm.types import BYTES, MEMORY, compute_dtype
from lowering.tables import CACHE_LINE, round_up
from lowering.triton.lanes import analyse_lanes
from qdtrace.analysis.index.trips import trip_count
from qdtrace.analysis.machine import AccumulationLimits
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Literal, ref_type
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from qdtrace.analysis.uniformity import Uniformity
    from qdtrace.ir.program import Atom, Eqn, Task, Var

_LIMITS = AccumulationLimits(registers=16, chunk_bytes=4096, lane_bytes=0, copy_work=1)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Sizes of blocks and launches, which are fixed so that sums have the same bits on every device."""

    stream: int = 1024
    """Iterations of a block if each program has one block."""
    walk: int = 2048
    """Iterations of a block if programs walk over blocks."""
    programs: int = 1024
    """Programs that walk over blocks: a few blocks of threads for each multiprocessor."""
    scan: int = 8192
    """The most iterations of a scan's block."""
    tiles: int = 4096
    """Tiles of a scan whose trip count only the device knows."""
    group: int = 32
    """Tiles of a scan that form a group: one for each lane of a warp."""


DEFAULT_TILING = Tiling()


class Way(Enum):
    """Strategies that keep an accumulation from losing updates."""

    OWN = auto()
    """Reads, combines and writes an element that no other iteration touches."""
    SUM = auto()
    """Sums an element that all iterations share in a variable of each lane."""
    COUNT = auto()
    """Counts a constant's additions to elements of a small integer array: a histogram."""
    ATOMIC = auto()


_WAYS = {Strategy.EXCLUSIVE: Way.OWN, Strategy.REGISTERS: Way.SUM, Strategy.SHARED: Way.ATOMIC}


@dataclass(frozen=True, slots=True)
class Part:
    """Sums of elements of one buffer in the scratch: one value per element and program."""

    ref: Var
    op: str
    indices: tuple[Atom, ...] | None
    """The element's indices, or None for all elements of the buffer."""
    eqns: tuple[Eqn, ...]
    program: int
    """The program that combines the first element; parts that may share an element have the same one."""
    offset: int
    """Byte offset in the scratch."""

    @property
    def size(self) -> int:
        """The number of elements."""
        return ref_type(self.ref).size if self.indices is None else 1

    @property
    def dtype(self) -> DType:
        """The dtype of the partial sums."""
        return DType.i32 if self.indices is None else compute_dtype(self.ref.dtype)


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for one task."""

    facts: TaskFacts
    lanes: Uniformity
    ways: dict[Eqn, Way]
    parts: tuple[Part, ...]
    count: int | None
    """Trip count, or None if only the device knows it."""
    block: int
    """Iterations of a block."""
    programs: int
    """Programs of the launch."""

    @property
    def walks(self) -> bool:
        """Returns whether programs walk over several blocks."""
        return self.count is None or self.programs * self.block < self.count

    @property
    def warps(self) -> int:
        """Warps of a program, as if each had 32 lanes."""
        return warps_for(self.block)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch for the partial sums of all programs."""
        return sum(slot_bytes(p.dtype, p.size, self.programs) for p in self.parts)


def warps_for(block: int) -> int:
    """Returns the warps of a program for a block: a thread of a 32-lane warp has 8 elements."""
    return max(1, min(8, block // 256))


def slot_bytes(dtype: DType, size: int, programs: int) -> int:
    """Returns the bytes for so many elements of each program."""
    return round_up(BYTES[MEMORY[dtype]] * size * programs, CACHE_LINE)


def plan_task(task: Task, tiling: Tiling = DEFAULT_TILING) -> Plan:
    """Returns the plan of a task that is not a scan."""
    facts = TaskFacts(task)
    ways = ways_of(facts)
    count = 1 if task.kind == "serial" else trip_count(task.start, task.stop)
    walks = count is None or Way.SUM in ways.values() or Way.COUNT in ways.values()
    block = tiling.walk if walks else tiling.stream
    while count is not None and block > 32 and block >= 2 * count:
        block //= 2
    programs = tiling.programs if count is None else -(-count // block)
    if walks:
        programs = min(programs, tiling.programs)
    return Plan(facts, analyse_lanes(task), ways, _parts(facts, ways, programs), count, block, programs)


def ways_of(facts: TaskFacts) -> dict[Eqn, Way]:
    """Returns the way of each accumulation of a task."""
    found: dict[Eqn, Way] = {}
    serial, privatised = facts.task.kind == "serial", privatise(facts, _LIMITS)
    for ref, eqns in facts.effects.items():
        accums = [e for e in eqns if e.primitive is ACCUM]
        small = ref in privatised.chunk_copies
        counted = Way.COUNT if all(map(_counts, accums)) else Way.ATOMIC
        for eqn in accums:
            found[eqn] = Way.OWN if serial else counted if small else _WAYS[privatised.strategy_of(eqn)]
    return found


def _counts(eqn: Eqn) -> bool:
    """Returns whether an accumulation adds a constant to a 32-bit integer."""
    known = isinstance(eqn.invars[1], Literal) and eqn.params["op"] == "add"
    return known and reference(eqn).dtype in (DType.i32, DType.u32)


def _parts(facts: TaskFacts, ways: dict[Eqn, Way], programs: int) -> tuple[Part, ...]:
    groups: dict[tuple[Var, tuple[Atom, ...] | None, object], list[Eqn]] = {}
    for eqn, way in ways.items():
        if way is Way.SUM:
            groups.setdefault((reference(eqn), indices_of(eqn), None), []).append(eqn)
        elif way is Way.COUNT:  # the constants of a part are equal: the count is multiplied by it
            groups.setdefault((reference(eqn), None, eqn.invars[1]), []).append(eqn)
    parts: list[Part] = []
    program = offset = 0
    for (ref, indices, _), eqns in groups.items():
        same = [p for p in parts if p.ref is ref and not (_is_fixed(p.indices) and _is_fixed(indices))]
        part = Part(ref, str(eqns[0].params["op"]), indices, tuple(eqns), same[0].program if same else program, offset)
        parts.append(part)
        program += 0 if same else part.size
        offset += slot_bytes(part.dtype, part.size, programs)
    return tuple(parts)


def _is_fixed(indices: tuple[Atom, ...] | None) -> bool:
    """Returns whether all indices are literals, so that another such place is another element."""
    return indices is not None and all(isinstance(a, Literal) for a in indices)
