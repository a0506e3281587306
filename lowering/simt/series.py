"""A *series*: consecutive tasks that one block runs in one kernel.

A launch costs some 3 us of the host and 2 of the device, as much as a small task itself. One block uses one
multiprocessor, so all tasks of a series must be small and light, by estimates (docs/design/0021). Between two tasks the
block waits for its threads, instead of the device for a kernel to end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.plan.sums import copy_sizes
from lowering.tables import CACHE_LINE, FIELD, round_up
from qdtrace.analysis.cost import accesses, code_size, has_open_loop, operations, peak_live
from qdtrace.analysis.index.trips import trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.memory import changes_its_head
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Task
from qdtrace.ir.walk import private_bytes, walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from lowering.simt.devices import Device

MOST_ITERATIONS = 4096
"""The most iterations of a task."""
MOST_WORK = 1 << 18
"""The most operations of all iterations of a task: about a microsecond of one multiprocessor, as much as a launch."""
ACCESS = 16
"""Operations that an access to memory counts as: its cost on one multiprocessor if neighbours lie apart."""
MOST_CODE = 512
"""The most operations in the code of a series, which is compiled as a whole."""
MOST_REFS = 128
"""The most pointers that the kernel of a series takes."""
MOST_THREADS = 1024
"""The most threads of the block."""
MOST_LIVE = 24
"""The most values of a thread that are live at once: with so many threads each has 64 registers."""
MOST_PRIVATE = 256
"""The most bytes of private memory of an iteration."""
COPY_BYTES = 20 << 10
"""Shared memory for privatised copies of arrays that the tasks sum into, in whole lines. Reductions use 8 KiB more, and
`HELD_BYTES` are for buffers: a block has 48 KiB without raising its limit."""
HELD_BYTES = 1 << 14
"""Shared memory for buffers of the series."""
FILL_BYTES = 1 << 15
"""The most bytes before a task that the block fills; more are filled by commands of their own."""


@frozen(slots=True)
class Filling:
    """A step that fills memory with one value."""

    nbytes: int
    value: bytes
    """Bytes of one element."""

    @property
    def width(self) -> int:
        """Bytes of a store: the widest that divides the size."""
        return next(w for w in (FIELD, 4, 2, 1) if self.nbytes % w == 0)


Step = Filling | Task


@frozen(slots=True)
class Series:
    """Consecutive tasks that one kernel runs, with the fillings before each."""

    tasks: range
    threads: int
    """Threads of the block."""

    @property
    def reason(self) -> str:
        """The launch of the series in words, for reports."""
        others = len(self.tasks) - 1
        what = f"with {others} other small task{'s'[: others != 1]}" if others else "with what is filled or summed"
        return f"one block of {self.threads} threads, in one kernel {what}"


@frozen
class BlockMemory:
    """The arguments of a series' kernel that are in shared memory."""

    offsets: Mapping[int, int]
    """Byte offsets into that memory, by the number of the argument."""
    nbytes: int


def why_alone(task: Task) -> str | None:
    """Returns why a task must have kernels of its own, or None if it may be part of a series."""
    iterations = trip_count(task.start, task.stop)
    if "block_dim" in task.hints:
        return f"block_dim={task.hints['block_dim']}"
    if iterations is None:
        return "its bounds are known only on the device"
    if iterations > MOST_ITERATIONS:
        return f"more than {MOST_ITERATIONS} iterations"
    loops = any(e.primitive.loops for e in walk_eqns(task.body))
    if has_open_loop(task) or (task.kind == "serial" and loops):  # Triton may compile a scan
        return "loops that may be long"
    work = iterations * (operations(task.body) + ACCESS * accesses(task.body))
    if work > MOST_WORK:
        return f"too much work for one multiprocessor ({work} operations)"
    if peak_live(task.body) > MOST_LIVE or private_bytes(task.body.eqns) > MOST_PRIVATE:
        return "too many values for a block of many threads"
    if changes_its_head(task):
        return "it changes what all its iterations read at first"
    return None


def find_series(
    tasks: Sequence[Task], filled: Mapping[int, int], device: Device, threads: int | None = None
) -> tuple[Series, ...]:
    """Returns the series of a program, in order: those that reduce the number of launches.

    `filled` has the bytes that are filled before each task; `threads` is the user's number for a block.
    """
    if threads is not None and threads > MOST_THREADS:  # `plan_task` refuses it
        return ()
    return tuple(_series(tasks, filled, device, threads))


def _series(
    tasks: Sequence[Task], filled: Mapping[int, int], device: Device, threads: int | None
) -> Iterator[Series]:
    first, room = 0, _Room(device, threads)
    for k, task in enumerate(tasks):
        fits = why_alone(task) is None
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
    """The resources that the tasks of one series use together."""

    def __init__(self, device: Device, threads: int | None) -> None:
        self._device = device
        self._asked = threads
        self._code = self._refs = self._copies = self._most = 0
        self._sums = False

    def has(self, task: Task) -> bool:
        """Returns whether the series has room for one more task."""
        code, refs, copies = self._of(task)
        few = self._code + code <= MOST_CODE and self._refs + refs <= MOST_REFS
        return few and self._copies + (copies or 0) <= COPY_BYTES

    def take(self, task: Task) -> None:
        """Adds a task to the series."""
        code, refs, copies = self._of(task)
        self._code, self._refs, self._copies = self._code + code, self._refs + refs, self._copies + (copies or 0)
        self._most = max(self._most, trip_count(task.start, task.stop) or 0)
        self._sums |= copies is not None

    def made(self, tasks: range, filled: Mapping[int, int]) -> Iterator[Series]:
        """Yields the series of these tasks if it needs fewer launches than they would alone."""
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
        """Returns code size, references, and shared memory for copies; that is None if the task sums nothing."""
        return code_size(task.body), len(task.refs) + 1, self._copy_bytes(task)

    def _copy_bytes(self, task: Task) -> int | None:
        if task.kind == "serial" or not any(e.primitive is ACCUM for e in walk_eqns(task.body)):
            return None
        sizes = copy_sizes(task, self._device.machine.accumulation)
        return None if sizes is None else sum(round_up(size, CACHE_LINE) for size in sizes)
