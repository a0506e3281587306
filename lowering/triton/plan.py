"""The plan of a task's Triton kernels, decided before a line is written.

form     task                           kernels
stream   independent iterations         a block of iterations per program
sums     accumulates into few elements  a fixed number of programs walk over the blocks; each stores its sums in a slot
                                        of the scratch; `qd_combine` combines the slots, one program per element
serial   one iteration                  one program of scalars (a scan, which is serial too, has a plan of its own)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.plan.sums import Sums, Where, find_sums, lay_out
from lowering.tables import CACHE_LINE
from lowering.triton.lanes import analyse_lanes
from qdtrace.analysis.index.trips import trip_count
from qdtrace.analysis.machine import AccumulationLimits
from qdtrace.frozen import frozen
from qdtrace.ir.memory import reference
from qdtrace.ir.program import Literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.plan.sums import Part
    from qdtrace.analysis.uniformity import Uniformity
    from qdtrace.ir.program import Atom, Eqn, Task

_LIMITS = AccumulationLimits(registers=16, chunk_bytes=4096, lane_bytes=0, copy_work=1)


@frozen(slots=True)
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


@frozen(slots=True)
class Plan:
    """The decisions for one task."""

    facts: TaskFacts
    lanes: Uniformity
    sums: Sums
    totals: Mapping[Part, tuple[Eqn, ...]]
    """The sums that a program stores in its slots, with their accumulations."""
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
        """Warps of a program, as if each had 32 lanes: a thread has 8 elements."""
        return max(1, min(8, self.block // 256))

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch for the partial sums of all programs."""
        return lay_out(self.totals, CACHE_LINE, copies=self.programs).nbytes


def plan_task(task: Task, tiling: Tiling = DEFAULT_TILING) -> Plan:
    """Returns the plan of a task that is not a scan."""
    facts = TaskFacts(task)
    sums = sums_of_programs(facts)
    count = 1 if task.kind == "serial" else trip_count(task.start, task.stop)
    walks = count is None or bool(sums.of(Where.REGISTERS, Where.COPY))
    block = tiling.walk if walks else tiling.stream
    while count is not None and block > 32 and block >= 2 * count:
        block //= 2
    programs = tiling.programs if count is None else -(-count // block)
    if walks:
        programs = min(programs, tiling.programs)
    return Plan(facts, analyse_lanes(task), sums, _totals(facts, sums, programs), count, block, programs)


def sums_of_programs(facts: TaskFacts) -> Sums:
    """Returns the sums of a task. A copy of an array is a histogram: it counts the additions of a constant."""
    if facts.task.kind == "serial":
        return Sums({}, frozenset(facts.effects))
    sums = find_sums(facts, _LIMITS)
    no_histograms = [p for p in sums.of(Where.COPY) if not all(map(_counts, facts.effects[p.ref]))]
    return replace(sums, parts={**sums.parts, **{p.place: replace(p, where=Where.SHARED) for p in no_histograms}})


def _counts(eqn: Eqn) -> bool:
    """Returns whether an accumulation adds a constant to a 32-bit integer."""
    known = isinstance(eqn.invars[1], Literal) and eqn.params["op"] == "add"
    return known and reference(eqn).dtype in (DType.i32, DType.u32)


def _totals(facts: TaskFacts, sums: Sums, programs: int) -> dict[Part, tuple[Eqn, ...]]:
    """Returns the sums of programs. The constants of a histogram are equal: the count is multiplied by it."""
    groups: dict[tuple[Part, Atom | None], list[Eqn]] = {}
    for eqn in facts.accums:
        part = sums.part(eqn)
        if part is not None and part.where is Where.REGISTERS:
            groups.setdefault((part, None), []).append(eqn)
        elif part is not None and part.where is Where.COPY:
            groups.setdefault((replace(part, dtype=DType.i32), eqn.invars[1]), []).append(eqn)
    slot = lay_out((part for part, _ in groups), CACHE_LINE, copies=programs)
    return dict(zip(slot.parts, map(tuple, groups.values()), strict=True))
