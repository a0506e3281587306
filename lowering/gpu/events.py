"""Times of launches on a GPU, while somebody listens who asks for devices, by an event of the driver around each.

A handler claims record n of the log, has the driver record event 2n and 2n + 1 on the stream, and goes on; the time
between them is computed when the log is read. While nobody listens a launch only loads one word. Launches that XLA
replays from a graph call no handler, so the log does not have them.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from typing import TYPE_CHECKING

from lowering.gpu.fill import FILL
from lowering.llvm.host import External, Fields, Symbol
from lowering.runtime.launch_log import LaunchLog, completed, nanoseconds
from lowering.tables import COMMAND, FIELD, LAUNCHED
from qdtrace.analysis.index.trips import static_bounds
from qdtrace.launches import Launch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lowering.gpu.commands import Command
    from lowering.gpu.driver import Driver, Functions
    from lowering.llvm.host import Code, Value
    from lowering.runtime.layout import Layout

MOST = 1 << 12
"""Launches that are timed between two readings; each has two events of the driver."""
EVENTS = Symbol("qd_events", "global ptr null")


def mark(c: Code, driver: Functions, record: Value, which: int, stream: Value) -> None:
    """Has the driver record the first (0) or second (1) event of a launch, if the record is there."""
    with c.when(record.differs(None)):
        number = (Fields(LAUNCHED, record).start << 1) + which
        event = c.value(EVENTS, "ptr").load("ptr").word(number).load("ptr")
        External(f"i32 {driver.record}(ptr, ptr)")(c, event, stream)


def write_down(c: Code, record: Value, what: Fields) -> None:
    """Writes down a launch, if the record is there."""
    with c.when(record.differs(None)):
        Fields(LAUNCHED, record).put(what=what, began=nanoseconds(c))
        completed(c, record)


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
        """Makes a launcher write into this log."""
        address = launcher[EVENTS.name]
        self._events_words[address] = ctypes.c_void_p.from_address(address)
        super().know_launcher(launcher)

    def know_commands(self, commands: Sequence[Command], pieces: Iterable[range], address: int, layout: Layout) -> None:
        """Notes which program a handler's table of commands belongs to; `pieces`: tasks that are launched together."""
        self._commands[address] = commands, {piece.start: piece for piece in pieces}
        self.know_table(address, layout)

    def start(self) -> None:
        """Clears the log and makes launchers write into it."""
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
        if command.width or command.symbol == FILL:
            filled = command.width * command.blocks or FIELD * command.places[1].offset
            return Launch(program, len(program.tasks), True, began, ended, 0, filled, device=device)
        task, kernel = map(int, command.symbol.rsplit("_", 2)[1:])
        bounds = [static_bounds(program.tasks[k]) or (0, 0) for k in pieces[task]]
        iterations = sum(stop - start for start, stop in bounds)
        together, further = len(pieces[task]), kernel > 0
        return Launch(
            program, task, False, began, ended, iterations, together=together, is_further=further, device=device
        )
