"""Progress of the compiler on a terminal, once it takes longer than two seconds.

`doing` is around each stage. If stderr is a terminal, a thread writes one line and clears it at the end of the
outermost stage. The function of the user does not run in a stage, so its output is not disturbed.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.config import current
from qdtrace.counters import timed
from qdtrace.frozen import mutable

if TYPE_CHECKING:
    from collections.abc import Generator

    from qdtrace.config import Options

PATIENCE = 2.0
"""Seconds until the line appears."""
_AGAIN = 0.25
_CLEAR = "\r\x1b[K"


@mutable(eq=False)
class Stage:
    """A stage of compilation, and how many of its parts are done."""

    what: str
    name: str
    total: int = 0
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    def step(self, name: str) -> None:
        """Begins the next part."""
        self.name = name
        self.done += 1

    def text(self) -> str:
        """Returns the line of progress: `compiling step.3 (4 of 17)`."""
        return f"{self.what} {self.name}" + (f" ({self.done} of {self.total})" if self.total > 1 else "")


_open: list[Stage] = []
"""The open stages of all threads; the last one is shown."""
_changing = threading.Lock()


@contextlib.contextmanager
def doing(what: str, name: str, total: int = 0, options: Options | None = None) -> Generator[Stage]:
    """Shows a stage of `total` parts on a terminal if its block takes long, unless the option `progress` of the
    outermost stage is off, and adds its time to `counters`."""
    stage, watch = Stage(what, name, total), None
    with _changing:
        if not _open and (options or current()).progress and sys.stderr is not None and sys.stderr.isatty():
            watch = _Watch()
            watch.start()
        _open.append(stage)
    try:
        with timed(what):
            yield stage
    finally:
        with _changing:
            _open.remove(stage)
        if watch is not None:
            watch.ended.set()
            watch.join()


class _Watch(threading.Thread):
    """The thread that shows the last open stage, after `PATIENCE` seconds."""

    def __init__(self) -> None:
        super().__init__(name="qdtrace progress", daemon=True)
        self.ended = threading.Event()
        self.began = time.monotonic()
        self.terminal = sys.stderr

    def run(self) -> None:
        wait = PATIENCE
        while not self.ended.wait(wait):
            wait = _AGAIN
            stages = _open[-1:]
            if stages:
                text = f"qdtrace: {stages[0].text()}, {time.monotonic() - self.began:.0f} s"
                self._write(_CLEAR + text[: shutil.get_terminal_size().columns - 1])
        if wait == _AGAIN:
            self._write(_CLEAR)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the terminal is gone
            self.terminal.write(text)
            self.terminal.flush()
