"""How long launches on a GPU take, while somebody listens who asks for devices: an event of the driver around each.

A handler claims a number, has the driver record event 2n and 2n + 1 on the stream, and goes on; what was between them
is asked for when the log is read. While nobody listens a launch looks at one word. Launches that XLA keeps as a graph
are none of a handler: they are not seen.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from typing import TYPE_CHECKING

from lowering.gpu.commands import Fill
from lowering.gpu.fill import FILL
from lowering.runtime.launch_log import LOG_WORD, LaunchLog
from lowering.tables import COMMAND, FIELD, LAUNCHED, LOG
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.launches import Launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowering.gpu.commands import Command
    from lowering.gpu.driver import Driver, Functions
    from lowering.runtime.layout import Layout

MOST = 1 << 12
"""Launches that are timed between two readings; each has two events of the driver."""
EVENTS_WORD = "qd_events"


def events_around(driver: Functions) -> str:
    """LLVM IR: claiming a number (-1 while nobody listens), recording an event, and writing down a launch."""
    return f"""
@{EVENTS_WORD} = global ptr null
declare i32 @{driver.record}(ptr, ptr)

define internal i64 @claim() alwaysinline {{
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
  ret i64 %k
no:
  ret i64 -1
}}

; has the driver record the first (0) or second (1) event of a launch
define internal void @mark(i64 %k, i64 %which, ptr %stream) alwaysinline {{
  %off = icmp slt i64 %k, 0
  br i1 %off, label %out, label %on
on:
  %events = load ptr, ptr @{EVENTS_WORD}
  %twice = shl i64 %k, 1
  %number = add i64 %twice, %which
  %place = getelementptr ptr, ptr %events, i64 %number
  %event = load ptr, ptr %place
  %ignored = call i32 @{driver.record}(ptr %event, ptr %stream)
  br label %out
out:
  ret void
}}

define internal void @write_down(i64 %k, ptr %what) alwaysinline {{
  %off = icmp slt i64 %k, 0
  br i1 %off, label %out, label %on
on:
  %log = load ptr, ptr @{LOG_WORD}
  %at = mul i64 %k, {LAUNCHED.size}
  %records = getelementptr i8, ptr %log, i64 {LOG.size}
  %record = getelementptr i8, ptr %records, i64 %at
  %began = call i64 @nanoseconds()
  {LAUNCHED.store("%record", "what", "began", start="k")}
  %complete = getelementptr i8, ptr %record, i64 {LAUNCHED.offsets["complete"]}
  store atomic i64 1, ptr %complete release, align 8
  br label %out
out:
  ret void
}}
"""


class EventLog(LaunchLog):
    """The log of the handlers of one driver: see `qdtrace.launches.Recorder`."""

    on_device = True

    def __init__(self, driver: Driver) -> None:
        super().__init__()
        self.room = MOST
        self._driver = driver
        self._events = (ctypes.c_void_p * 0)()
        self._events_words: dict[int, ctypes.c_void_p] = {}
        self._commands: dict[int, tuple[Sequence[Command], Mapping[int, range]]] = {}

    def know_launcher(self, launcher: Mapping[str, int]) -> None:
        """Has a launcher write into this log."""
        address = launcher[EVENTS_WORD]
        self._events_words[address] = ctypes.c_void_p.from_address(address)
        super().know_launcher(launcher)

    def know_commands(
        self, address: int, layout: Layout, commands: Sequence[Command], pieces: Iterable[range]
    ) -> None:
        """Says of which program a handler's table of commands is; `pieces`: tasks that are launched together."""
        self._commands[address] = commands, {piece.start: piece for piece in pieces}
        self.know_table(address, layout)

    def start(self) -> None:
        """Has launchers write, beginning anew."""
        if self._words and not self._events:
            self._events = (ctypes.c_void_p * (2 * MOST))(*(self._driver.event() for _ in range(2 * MOST)))
        for word in self._events_words.values():
            word.value = ctypes.addressof(self._events)
        if self._words:
            super().start()

    def _launch(self, row: list[int], parts: Iterable[list[int]]) -> Launch | None:
        what, _, began, _, number, _, _, _ = row
        table = self._starts[bisect_right(self._starts, what) - 1]
        seconds = self._driver.elapsed(self._events[2 * number] or 0, self._events[2 * number + 1] or 0)
        if seconds is None:  # recorded by XLA to be launched with a graph
            return None
        program = self._tables[table].program
        commands, pieces = self._commands[table]
        command, ended = commands[(what - table) // COMMAND.size], began + round(seconds * 1e9)
        device = self._driver.platform.jax
        if isinstance(command, Fill):
            filled = command.width * command.count
            return Launch(program, len(program.tasks), True, began, ended, 0, filled, device=device)
        if command.symbol == FILL:
            filled = FIELD * command.arguments[1].offset
            return Launch(program, len(program.tasks), True, began, ended, 0, filled, device=device)
        task, kernel = map(int, command.symbol.rsplit("_", 2)[1:])
        bounds = [static_bounds(program.tasks[k]) or (0, 0) for k in pieces[task]]
        iterations = sum(stop - start for start, stop in bounds)
        together, further = len(pieces[task]), kernel > 0
        return Launch(
            program, task, False, began, ended, iterations, together=together, is_further=further, device=device
        )
