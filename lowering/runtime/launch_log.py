"""The log of launches, which the launcher writes while somebody listens (`qdtrace.launches`).

The log is memory of Python: a header, and one record per launch. Its address is a word of the launcher, null while
nobody listens. A thread claims a record by adding one to the header's counter, so nothing waits.
"""

from __future__ import annotations

import ctypes
import functools
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from lowering.llvm.host import External, Fields, Symbol, function
from lowering.tables import FIELD, LAUNCHED, LOG, TASK
from qdtrace import launches
from qdtrace.launches import Launch, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lowering.llvm.host import I64, Code, Ptr, Value
    from lowering.runtime.layout import Layout

ROOM = 1 << 18
"""Records of a log; pages that are never written cost no memory."""
TASKS, FILLS, PARTS = 0, 1, 2
"""Kinds of records: a task, by its address in a handler's table; fills before a task, by the address of the table and
its number; another thread's part of a task."""
CLOCK_MONOTONIC = 1
LOG_ADDRESS = Symbol("qd_log", "global ptr null")
CLOCK = External("i32 clock_gettime(i32, ptr)")
_THREAD = External("i64 pthread_self()")


@function("cold noinline")
def nanoseconds(c: Code) -> I64:
    """Returns the time."""
    time = c.memory("[2 x i64]")
    CLOCK(c, CLOCK_MONOTONIC, time)
    return time.load("i64") * 1000000000 + time.load("i64", FIELD)


def _log_of(c: Code, order: str) -> Value:
    return c.op("ptr", f"load atomic ptr, {c.value(LOG_ADDRESS, 'ptr')} {order}, align 8")


@function("alwaysinline")
def began(c: Code) -> I64:
    """Returns the time; 0 while nobody listens."""
    c.give_if(_log_of(c, "monotonic").equals(None), 0)
    return nanoseconds(c)


@function("alwaysinline")
def claim(c: Code) -> Ptr:
    """Returns a record that nobody else has, with its number in `start`; null while nobody listens, or where no room is
    left."""
    log = _log_of(c, "acquire")
    c.give_if(log.equals(None))
    room = Fields(LOG, log).room
    k = c.op("i64", f"atomicrmw add {log}, i64 1 monotonic")
    c.give_if(k.below(room).equals(0))
    record = Fields(LAUNCHED, log.at(LOG.size)).row(k)
    record.put(start=k)
    return record.pointer


@function("alwaysinline")
def completed(c: Code, record: Ptr) -> None:
    """Says that a record is whole."""
    c.do(f"store atomic i64 1, {Fields(LAUNCHED, record).place('complete')} release, align 8")


@function("cold noinline")
def note(c: Code, what: Ptr, kind: I64, began: I64, start: I64, stop: I64) -> None:
    """Writes down what has ended now."""
    ended, record = nanoseconds(c), claim(c)
    with c.when(record.differs(None)):
        times = {"began": began, "ended": ended}
        Fields(LAUNCHED, record).put(what=what, kind=kind, **times, start=start, stop=stop, thread=_THREAD(c))
        completed(c, record)


class LaunchLog:
    """The log of the handlers on processors: see `qdtrace.launches.Recorder`."""

    on_device = False

    def __init__(self) -> None:
        self._words: dict[int, ctypes.c_void_p] = {}
        self._tables: dict[int, Layout] = {}
        self._starts: list[int] = []
        self.room = ROOM
        """Number of records that may be written, at most `ROOM`."""
        self._is_on = False

    @functools.cached_property
    def _memory(self) -> np.ndarray:
        return np.zeros(LOG.size // 8 + ROOM * (LAUNCHED.size // 8), np.int64)

    @property
    def _records(self) -> np.ndarray:
        return self._memory[LOG.size // 8 :].reshape(ROOM, -1)

    def know_launcher(self, launcher: Mapping[str, int]) -> None:
        """Makes a launcher write into this log."""
        address = launcher[LOG_ADDRESS.name]
        self._words[address] = ctypes.c_void_p.from_address(address)
        self._point()

    def know_table(self, address: int, layout: Layout) -> None:
        """Notes which program a handler's table of tasks belongs to."""
        self._tables[address] = layout
        self._starts = sorted(self._tables)

    def _point(self) -> None:
        for word in self._words.values():
            word.value = self._memory.ctypes.data if self._is_on else None

    def start(self) -> None:
        """Clears the log and makes launchers write into it."""
        self._records[: self.count()] = 0
        self._memory[[0, LOG.offsets["room"] // 8]] = 0, self.room
        self._is_on = True
        self._point()

    def stop(self) -> None:
        """Makes launchers write no more."""
        self._is_on = False
        self._point()

    def count(self) -> int:
        """Returns the number of records that were written."""
        return min(int(self._memory[0]), self.room) if "_memory" in vars(self) else 0

    def read(self, begin: int) -> tuple[list[Launch], int]:
        """Returns the launches from record `begin` on, and how many found no room."""
        end = self.count()
        rows = [row for row in self._records[begin:end].tolist() if row[-1]] if end > begin else []
        left_out = int(self._memory[0]) - self.room if end == self.room else 0
        parts = [row for row in rows if row[1] == PARTS]
        found = (self._launch(row, parts) for row in rows if row[1] != PARTS)
        return [launch for launch in found if launch is not None], left_out

    def _launch(self, row: list[int], parts: Iterable[list[int]]) -> Launch | None:
        what, kind, began, ended, start, stop, thread, _ = row
        at = bisect_right(self._starts, what) - 1
        if at < 0:
            return None
        table = self._starts[at]
        layout = self._tables[table]
        program = layout.program
        # the thread that runs the last chunk reports it done before it writes its record
        others = tuple(Part(p[6], p[2], min(p[3], ended)) for p in parts if p[6] != thread and began <= p[2] < ended)
        if kind == FILLS:
            filled = sum(clear.nbytes for clear in layout.clears if clear.before == start)
            return Launch(program, start, True, began, ended, 0, filled, thread, others)
        return Launch(program, (what - table) // TASK.size, False, began, ended, stop - start, 0, thread, others)


log = LaunchLog()
launches.add(log)
