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

from lowering.tables import LAUNCHED, LOG, TASK
from qdtrace import launches
from qdtrace.launches import Launch, Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lowering.runtime.layout import Layout

ROOM = 1 << 18
"""Records of a log; pages that are never written cost no memory."""
TASKS, FILLS, PARTS = 0, 1, 2
"""Kinds of records: a task, by its address in a handler's table; fills before a task, by the address of the table and
its number; another thread's part of a task."""
CLOCK_MONOTONIC = 1
LOG_WORD = "qd_log"

LAUNCH_LOG = f"""
@{LOG_WORD} = global ptr null
declare i32 @clock_gettime(i32, ptr)
declare i64 @pthread_self()

define internal i64 @nanoseconds() cold noinline {{
  %time = alloca [2 x i64], align 8
  %ignored = call i32 @clock_gettime(i32 {CLOCK_MONOTONIC}, ptr %time)
  %seconds = call i64 @load_i64(ptr %time, i64 0)
  %rest = call i64 @load_i64(ptr %time, i64 8)
  %most = mul i64 %seconds, 1000000000
  %now = add i64 %most, %rest
  ret i64 %now
}}

; the time; 0 while nobody listens
define internal i64 @began() alwaysinline {{
  %log = load atomic ptr, ptr @{LOG_WORD} monotonic, align 8
  %off = icmp eq ptr %log, null
  br i1 %off, label %no, label %yes
no:
  ret i64 0
yes:
  %now = call i64 @nanoseconds()
  ret i64 %now
}}

; a record that nobody else has, with its number in `start`; null while nobody listens, or where no room is left
define internal ptr @claim() alwaysinline {{
entry:
  %log = load atomic ptr, ptr @{LOG_WORD} acquire, align 8
  %off = icmp eq ptr %log, null
  br i1 %off, label %no, label %look
look:
  {LOG.load("%log", "room")}
  %k = atomicrmw add ptr %log, i64 1 monotonic
  %fits = icmp ult i64 %k, %room
  br i1 %fits, label %yes, label %no
yes:
  %at = mul i64 %k, {LAUNCHED.size}
  %records = getelementptr i8, ptr %log, i64 {LOG.size}
  %record = getelementptr i8, ptr %records, i64 %at
  {LAUNCHED.store("%record", start="k")}
  ret ptr %record
no:
  ret ptr null
}}

; says that a record is whole
define internal void @completed(ptr %record) alwaysinline {{
  %complete = getelementptr i8, ptr %record, i64 {LAUNCHED.offsets["complete"]}
  store atomic i64 1, ptr %complete release, align 8
  ret void
}}

; writes down what has ended now
define internal void @note(ptr %what, i64 %kind, i64 %began, i64 %start, i64 %stop) cold noinline {{
  %ended = call i64 @nanoseconds()
  %record = call ptr @claim()
  %off = icmp eq ptr %record, null
  br i1 %off, label %out, label %write
write:
  %thread = call i64 @pthread_self()
  {LAUNCHED.store("%record", *list(LAUNCHED.types)[:-1])}
  call void @completed(ptr %record)
  br label %out
out:
  ret void
}}
"""


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
        address = launcher[LOG_WORD]
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
