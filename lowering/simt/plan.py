"""The plan of a task's kernels, decided before a line of them is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.plan.sums import Part, Slot, Sums, Where, find_sums, in_turns, lay_out
from lowering.simt.grouping import group_size
from lowering.simt.spans import plan_spans
from lowering.simt.stacks import RUNNING, SCRATCH_BYTES, Stacks, plan_stacks
from lowering.tables import CACHE_LINE, FIELD, round_up
from qdtrace.analysis.index.trips import trip_count
from qdtrace.errors import BackendError
from qdtrace.frozen import frozen
from qdtrace.ir.memory import changes_its_head
from qdtrace.ir.primitives import FOR, LOAD
from qdtrace.ir.walk import walk_inside

if TYPE_CHECKING:
    from lowering.simt.devices import Device
    from lowering.simt.spans import BlockSpans
    from qdtrace.ir.program import Task

THREADS = 256
"""Default threads of a block: measured best, or within 2 % of the best, on six kinds of kernel."""
LONG_THREADS = 128
"""Threads of a block if each has much private memory, as registers are the limit and small blocks waste fewer of them;
or if loops have known trip counts and no loads, as blocks then end together: 1.5 % of an ODE of 1000 steps."""
LONG_BYTES = 64
"""Private memory of a thread from which `LONG_THREADS` applies."""
LEAST_THREADS = 32
"""The fewest threads of a block: blocks of a short range shrink until all multiprocessors have one."""
MOST_THREADS = 1024
"""Hardware limit of threads per block."""
BEGIN_BYTES = 3 * FIELD
"""Scratch that `qd_begin` writes: bounds of the range, and the iteration counter."""
BLOCK_WORD = 4
"""Bytes of scratch for each block of a task that runs in parts: whether it does."""
COUNTER_AT = 2 * FIELD
"""Byte offset of the iteration counter in that area."""


@frozen(eq=False)
class Plan:
    """The parallelisation of a task on a device."""

    facts: TaskFacts
    device: Device
    sums: Sums
    slot: Slot
    """The sums of a block."""
    threads: int
    """Threads of a block."""
    blocks: int
    """Blocks of the launch; 0: as many as the range needs."""
    group: int
    """Neighbouring iterations that a thread takes together."""
    iterations: int | None
    """Trip count of the range, or None if only the device knows it."""
    bounds_apart: bool
    """True if `qd_begin` computes the bounds, as the task writes what its head reads."""
    stacks: Stacks
    """Private arrays in scratch."""
    in_series: bool = False
    """True if the task is part of a kernel of one block (`series`)."""
    in_turns: bool = False
    """True if threads take iterations from a shared counter instead of by their number."""
    spans: BlockSpans | None = None
    """The parts in which a block runs its iterations where their spans are neighbours."""

    @property
    def begins_apart(self) -> bool:
        """True if `qd_begin` is launched before the kernel."""
        return self.bounds_apart or self.in_turns

    @property
    def combines(self) -> list[list[Part]]:
        """The parts of each launch of `qd_combine`."""
        return in_turns(self.slot.parts)

    @property
    def slots_at(self) -> int:
        """Byte offset of the blocks' slots in the scratch."""
        return BEGIN_BYTES if self.begins_apart else 0

    @property
    def stacks_at(self) -> int:
        """Byte offset of the private arrays in the scratch."""
        return round_up(self._slots_end, CACHE_LINE)

    @property
    def _slots_end(self) -> int:
        return self.slots_at + (0 if self.in_series else self.blocks * self.slot.nbytes)

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch that the kernels share."""
        if self.spans is not None and self.iterations is not None:
            return BLOCK_WORD * -(-self.iterations // self.threads)
        threads = round_up(self.blocks * self.threads, self.device.warp)
        return self.stacks_at + threads * self.stacks.nbytes if self.stacks.nbytes else self._slots_end

    @property
    def reason(self) -> str:
        """The parallelisation in words, with its reasons, for reports."""
        if self.facts.task.kind == "serial":
            return "serial task: one thread"
        if not self.blocks:
            each = "an iteration" if self.group == 1 else f"{self.group} iterations"
            how = f"a thread {each}, blocks of {self.threads}"
            if self.spans is not None:
                how += ", which compute values of positions apart where spans are neighbours"
        else:
            why = "it reduces" if self.slot.parts else "its bounds are known only on the device"
            if self.stacks.nbytes:
                why = f"each thread has {self.stacks.nbytes} bytes of scratch"
            each = f" {self.group} iterations a thread" if self.group > 1 else ""
            walk = "take turns on" if self.in_turns else "walk over"
            how = f"{self.blocks} blocks of {self.threads} {walk} the range{each}, as {why}"
        return how + self.sums.reason("block", "atomics")


def plan_task(task: Task, device: Device, block_dim: int | None = None, *, stages: bool = True) -> Plan:
    """Returns the plan of a task; `block_dim` is the user's number of threads of a block, and values of neighbouring
    rows may be computed apart if it `stages`. Raises BackendError if no chip allows that many threads."""
    facts = TaskFacts(task)
    wanted = task.hints.get("block_dim") or block_dim
    if wanted is not None and wanted > MOST_THREADS:
        raise BackendError(f"`block_dim` must be at most {MOST_THREADS}, got {wanted}", loc=task.loc)
    stacks = plan_stacks(facts)
    if task.kind == "serial":
        return Plan(facts, device, *_sums(facts, device), 1, int(bool(stacks.nbytes)), 1, 1, False, stacks)
    sums, slot = _sums(facts, device)
    iterations = trip_count(task.start, task.stop)
    threads = wanted or _threads(facts, iterations, device)
    at_once = device.multiprocessors * device.threads
    group = group_size(facts, iterations, at_once)
    blocks = 0
    if iterations is None or slot.parts or stacks.nbytes:
        running = device.multiprocessors * (min(RUNNING, device.threads) if stacks.nbytes else device.threads)
        if stacks.nbytes:
            running = min(running, SCRATCH_BYTES // stacks.nbytes)
        blocks = max(1, running // threads)
        if iterations is not None:
            blocks = max(1, min(blocks, -(-iterations // (threads * group))))
    apart = iterations is None and changes_its_head(task)
    # Threads of a multiprocessor are not equally fast, and such iterations are long. But the iterations that a thread
    # sums must not change from call to call.
    once = iterations is not None and iterations <= blocks * threads * group
    take_turns = bool(stacks.nbytes) and not (slot.parts or once)
    plan = Plan(facts, device, sums, slot, threads, blocks, group, iterations, apart, stacks, in_turns=take_turns)
    if blocks or iterations is None or not stages:
        return plan
    threads = wanted or _fewer_if_short(THREADS, iterations, device)
    spans = plan_spans(facts, sums, device, iterations, threads, wanted or min(threads, LONG_THREADS))
    return plan if spans is None else replace(plan, threads=spans.threads, spans=spans)


def plan_in_series(task: Task, device: Device, threads: int) -> Plan:
    """Returns the plan of a task of a series, which one block runs. `series.why_alone` has excluded tasks with dynamic
    bounds or with private arrays that need scratch."""
    facts = TaskFacts(task)
    iterations = trip_count(task.start, task.stop)
    return Plan(facts, device, *_sums(facts, device), threads, 1, 1, iterations, False, Stacks(), in_series=True)


def _sums(facts: TaskFacts, device: Device) -> tuple[Sums, Slot]:
    if facts.task.kind == "serial":
        return Sums({}, frozenset(facts.effects)), Slot()
    sums = find_sums(facts, device.machine.accumulation)
    return sums, lay_out(sums.of(Where.REGISTERS, Where.COPY))


def _threads(facts: TaskFacts, iterations: int | None, device: Device) -> int:
    threads = LONG_THREADS if facts.private_bytes >= LONG_BYTES or _counts_only(facts) else THREADS
    return _fewer_if_short(threads, iterations, device)


def _fewer_if_short(threads: int, iterations: int | None, device: Device) -> int:
    while iterations is not None and threads > LEAST_THREADS and iterations < device.multiprocessors * threads:
        threads //= 2
    return threads


def _counts_only(facts: TaskFacts) -> bool:
    """Returns whether an iteration has loops, all with known trip counts and without loads."""
    loops = facts.innermost_loops
    return (
        bool(loops)
        and all(e.primitive is FOR and trip_count(*e.bounds) for e in loops)
        and not any(e.primitive is LOAD for loop in loops for e in walk_inside(loop))
    )
