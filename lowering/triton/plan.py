"""How a task becomes kernels of Triton: decided before a line is written.

form     task                           kernels
stream   iterations on their own        a block of iterations a program
sums     accumulates into few places    a fixed number of programs walk over the blocks; each leaves its sums in a slot
                                        of the scratch; `qd_combine` combines the slots, an element a program
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
    """Sizes of blocks and launches. Fixed, so that sums have the same bits on every device."""

    stream: int = 1024
    """Iterations of a block that each program has one of."""
    walk: int = 2048
    """Iterations of a block where programs walk over blocks."""
    programs: int = 1024
    """That walk: a few blocks of threads for each multiprocessor."""
    scan: int = 8192
    """Iterations of a block of a scan, at most."""
    tiles: int = 4096
    """Of a scan whose iterations only the device knows."""
    group: int = 32
    """Tiles of a scan that wait for each other's sums alone: one for each lane of a warp."""


DEFAULT_TILING = Tiling()


class Way(Enum):
    """How an accumulation meets others."""

    OWN = auto()
    """Elements of its own: read, combine, write."""
    SUM = auto()
    """A place that all iterations name: a variable of each lane."""
    COUNT = auto()
    """A constant into an element of a small array of integers: a histogram."""
    ATOMIC = auto()


_WAYS = {Strategy.EXCLUSIVE: Way.OWN, Strategy.REGISTERS: Way.SUM, Strategy.SHARED: Way.ATOMIC}


@dataclass(frozen=True, slots=True)
class Part:
    """What programs leave in the scratch for elements of one buffer: for each element, one value a program."""

    ref: Var
    op: str
    indices: tuple[Atom, ...] | None
    """Which element; None where it is all of them."""
    eqns: tuple[Eqn, ...]
    program: int
    """The program that combines its first element; one alone combines what may be the same element."""
    offset: int
    """Bytes into the scratch."""

    @property
    def size(self) -> int:
        """Elements."""
        return ref_type(self.ref).size if self.indices is None else 1

    @property
    def dtype(self) -> DType:
        """Of the values."""
        return DType.i32 if self.indices is None else compute_dtype(self.ref.dtype)


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions for one task."""

    facts: TaskFacts
    lanes: Uniformity
    ways: dict[Eqn, Way]
    parts: tuple[Part, ...]
    count: int | None
    """Iterations; None where it is known only on the device."""
    block: int
    """Iterations of a block."""
    programs: int
    """Of the launch."""

    @property
    def walks(self) -> bool:
        """Whether programs walk over blocks."""
        return self.count is None or self.programs * self.block < self.count

    @property
    def warps(self) -> int:
        """Of a program, of 32 lanes."""
        return warps_for(self.block)

    @property
    def scratch_bytes(self) -> int:
        """Memory for what programs leave for each other."""
        return sum(slot_bytes(p.dtype, p.size, self.programs) for p in self.parts)


def warps_for(block: int) -> int:
    """Warps of 32 lanes of a program: a thread has 8 lanes of a block."""
    return max(1, min(8, block // 256))


def slot_bytes(dtype: DType, size: int, programs: int) -> int:
    """Memory for so many elements of each program."""
    return round_up(BYTES[MEMORY[dtype]] * size * programs, CACHE_LINE)


def plan_task(task: Task, tiling: Tiling = DEFAULT_TILING) -> Plan:
    """The plan of a task that is no scan."""
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
    """How each accumulation of a task is made."""
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
    """Whether an accumulation adds a constant to an integer of 32 bits."""
    known = isinstance(eqn.invars[1], Literal) and eqn.params["op"] == "add"
    return known and reference(eqn).dtype in (DType.i32, DType.u32)


def _parts(facts: TaskFacts, ways: dict[Eqn, Way], programs: int) -> tuple[Part, ...]:
    groups: dict[tuple[Var, tuple[Atom, ...] | None, object], list[Eqn]] = {}
    for eqn, way in ways.items():
        if way is Way.SUM:
            groups.setdefault((reference(eqn), indices_of(eqn), None), []).append(eqn)
        elif way is Way.COUNT:  # the constants of a part are equal: counts are multiplied by it
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
    """Whether an element is known: another place that is known is another element."""
    return indices is not None and all(isinstance(a, Literal) for a in indices)
