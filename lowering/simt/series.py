"""Which consecutive tasks one block runs in one kernel: a *series*.

A launch costs some 3 us of the host and 2 of the device, as much as a small task itself. One block uses one
multiprocessor, so all tasks of a series must be small and light, by estimates (docs/design/0021). Between two tasks it
waits for its threads, where the device would wait for a kernel to end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.tables import CACHE_LINE, FIELD, round_up
from qdtrace.analysis.cost import accesses, code_size, has_open_loop, operations, peak_live
from qdtrace.analysis.effects import mod_ref_of
from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Task, ref_type
from qdtrace.ir.walk import private_bytes, task_refs, walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lowering.simt.devices import Device

MOST_ITERATIONS = 4096
"""Of a task."""
MOST_WORK = 1 << 18
"""Operations of a task, all iterations together: about a microsecond of one multiprocessor, what a launch takes."""
ACCESS = 16
"""Operations that an access to memory counts as: what one multiprocessor loads if neighbours lie apart."""
MOST_CODE = 512
"""Operations of the code of a series: it is compiled as a whole."""
MOST_REFS = 128
"""Pointers that the kernel of a series takes."""
MOST_THREADS = 1024
"""Of the block."""
MOST_LIVE = 24
"""Values of a thread alive at once: a block of so many threads has 64 registers each."""
MOST_PRIVATE = 256
"""Private memory of an iteration."""
COPY_BYTES = 20 << 10
"""Memory of the block for copies of arrays that its tasks sum into, in whole lines. Its threads meet in 8 KiB more: a
block has 48 KiB that it need not ask for."""
HELD_BYTES = 1 << 14
"""Memory of the block in which buffers of the series are."""
FILL_BYTES = 1 << 15
"""Of a buffer that the block fills; a larger one is filled by a command of its own."""


@dataclass(frozen=True, slots=True)
class Filling:
    """A step that fills memory with one value."""

    nbytes: int
    value: bytes
    """One element."""

    @property
    def width(self) -> int:
        """Bytes of a store: as many as the memory is a multiple of."""
        return next(w for w in (FIELD, 4, 2, 1) if self.nbytes % w == 0)


Step = Filling | Task


@dataclass(frozen=True, slots=True)
class Series:
    """Consecutive tasks, and the fillings before each that are part of the kernel."""

    tasks: range
    threads: int
    """Of the block."""

    @property
    def reason(self) -> str:
        """How its tasks are launched."""
        others = len(self.tasks) - 1
        what = f"with {others} other small task{'s'[: others != 1]}" if others else "with what is filled or summed"
        return f"one block of {self.threads} threads, in one kernel {what}"


@dataclass(frozen=True)
class BlockMemory:
    """Which arguments of the kernel of a series lie in memory of its block."""

    offsets: Mapping[int, int]
    """Bytes into that memory, by the number of the argument."""
    nbytes: int


def why_alone(task: Task, device: Device) -> str | None:
    """Why a task has kernels of its own; None where it may be part of a series."""
    iterations = trip_count(task.start, task.stop)
    if "block_dim" in task.hints:
        return f"block_dim={task.hints['block_dim']}"
    if iterations is None:
        return "its bounds are known only on the device"
    if iterations > MOST_ITERATIONS:
        return f"more than {MOST_ITERATIONS} iterations"
    loops = any(e.primitive.loops for e in walk_eqns(task.body))
    if has_open_loop(task) or (task.kind == "serial" and loops):  # one that is a scan may be Triton's
        return "loops that may be long"
    work = iterations * (operations(task.body) + ACCESS * accesses(task.body))
    if work > MOST_WORK:
        return f"too much work for one multiprocessor ({work} operations)"
    if peak_live(task.body) > MOST_LIVE or private_bytes(task.body.eqns) > MOST_PRIVATE:
        return "too many values for a block of many threads"
    if not mod_ref_of(task.head).reads.isdisjoint(mod_ref_of(task.body.eqns).writes):
        return "it changes what all its iterations read at first"
    return None


def find_series(
    tasks: Sequence[Task], filled: Mapping[int, int], device: Device, threads: int | None = None
) -> tuple[Series, ...]:
    """The series of a program, in order: those that make the launches fewer.

    `filled` says how many bytes are filled before a task; `threads` is the user's number for a block.
    """
    if threads is not None and threads > MOST_THREADS:  # `plan_task` refuses it
        return ()
    return tuple(_series(tasks, filled, device, threads))


def _series(
    tasks: Sequence[Task], filled: Mapping[int, int], device: Device, threads: int | None
) -> Iterator[Series]:
    first, room = 0, _Room(device, threads)
    for k, task in enumerate(tasks):
        fits = why_alone(task, device) is None
        if not fits or filled.get(k, 0) > FILL_BYTES or not room.has(task):
            yield from room.made(range(first, k), filled)
            first, room = k, _Room(device, threads)
            fits = fits and room.has(task)
        if not fits:
            first = k + 1
            continue
        room.take(task)
    yield from room.made(range(first, len(tasks)), filled)


class _Room:
    """What the tasks of a series take together."""

    def __init__(self, device: Device, threads: int | None) -> None:
        self._device = device
        self._asked = threads
        self._code = self._refs = self._copies = self._most = 0
        self._sums = False

    def has(self, task: Task) -> bool:
        """Whether there is room for one more."""
        code, refs, copies = self._of(task)
        few = self._code + code <= MOST_CODE and self._refs + refs <= MOST_REFS
        return few and self._copies + (copies or 0) <= COPY_BYTES

    def take(self, task: Task) -> None:
        """One more."""
        code, refs, copies = self._of(task)
        self._code, self._refs, self._copies = self._code + code, self._refs + refs, self._copies + (copies or 0)
        self._most = max(self._most, trip_count(task.start, task.stop) or 0)
        self._sums |= copies is not None

    def made(self, tasks: range, filled: Mapping[int, int]) -> Iterator[Series]:
        """The series of these tasks, if it has fewer launches than they have."""
        if not self._most:
            return
        few = 0 < filled.get(tasks.start, 0) <= FILL_BYTES or self._sums
        if len(tasks) > 1 or few:
            yield Series(tasks, self._threads)

    @property
    def _threads(self) -> int:
        most = min(MOST_THREADS, self._device.threads)
        return self._asked or min(most, round_up(max(1, self._most), self._device.warp))

    def _of(self, task: Task) -> tuple[int, int, int | None]:
        """Code, references, and memory of the block for copies of arrays; None where the block sums nothing."""
        return code_size(task.body), len(task_refs(task)) + 1, self._copy_bytes(task)

    def _copy_bytes(self, task: Task) -> int | None:
        if task.kind == "serial" or not any(e.primitive is ACCUM for e in walk_eqns(task.body)):
            return None
        # Loaded here: a process that finds all its code in the cache mostly has no sums in a series.
        from lowering.llvm.facts import TaskFacts
        from lowering.llvm.privatisation import privatise
        from lowering.llvm.types import BYTES, MEMORY, compute_dtype

        ways = privatise(TaskFacts(task), self._device.machine.accumulation)
        if not (ways.registers or ways.chunk_copies):
            return None
        sizes = (ref_type(ref).size * BYTES[MEMORY[compute_dtype(ref.dtype)]] for ref in ways.chunk_copies)
        return sum(round_up(size, CACHE_LINE) for size in sizes)
