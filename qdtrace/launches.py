"""What ran when: handlers write launches down while somebody listens, and backends say where they can be read.

While nobody listens a handler looks at one word a launch and writes nothing. `qd.profile` and the timeline of
`jax.profiler` listen.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from qdtrace.ir.program import Program


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a task, or one fill of memory with an initial value."""

    program: Program
    """The graph that was compiled."""
    number: int
    """The task; of a fill, the task before which it is done (as many as there are tasks: behind the last one)."""
    is_fill: bool
    began: int
    """Nanoseconds of `time.monotonic_ns`."""
    ended: int
    iterations: int
    filled: int = 0
    """Bytes that a fill sets."""
    thread: int = 0
    """On a CPU the thread that ran it, and waited for the others: `threading.get_ident()`."""
    parts: tuple[Part, ...] = ()
    """What other threads did of it."""
    device: str = "cpu"
    """The platform."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.began) * 1e-9

    @property
    def label(self) -> str:
        """The name that the user gave, else function and line."""
        tasks = self.program.tasks
        if self.is_fill:
            return f"fill before {label_of(self.program, self.number)}" if self.number < len(tasks) else "fill"
        return label_of(self.program, self.number)


@dataclass(frozen=True, slots=True)
class Part:
    """What one more thread did of a launch."""

    thread: int
    began: int
    ended: int


def label_of(program: Program, number: int) -> str:
    """What a task is called on tables and timelines: the name that the user gave, else function and line."""
    task = program.tasks[number]
    function, dot, rest = task.name.rpartition(".")
    if not dot or task.loc is None:  # names that a user gives are words
        return task.name
    return f"{function}:{task.loc.line}" + rest.lstrip("serial0123456789").replace("_", " ")


class Recorder(Protocol):
    """What a backend knows of the launches of its handlers."""

    def start(self) -> None:
        """Has handlers write down what they launch, beginning anew."""
        ...

    def stop(self) -> None:
        """Handlers write nothing from now on."""
        ...

    def count(self) -> int:
        """How many launches and parts there are."""
        ...

    def read(self, begin: int) -> tuple[list[Launch], int]:
        """The launches from that number on, in the order in which they ended, and how many found no room."""
        ...


_recorders: list[Recorder] = []
_listeners = 0
_lock = threading.RLock()


def add(recorder: Recorder) -> None:
    """Makes a recorder known."""
    with _lock:
        _recorders.append(recorder)
        if _listeners:
            recorder.start()


class Listening:
    """A block in which launches are written down; several may overlap."""

    def __enter__(self) -> Self:
        global _listeners
        with _lock:
            if not _listeners:
                for recorder in _recorders:
                    recorder.start()
            _listeners += 1
            self._begin = {id(recorder): recorder.count() for recorder in _recorders}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        global _listeners
        with _lock:
            self._found = self._read()
            _listeners -= 1
            if not _listeners:
                for recorder in _recorders:
                    recorder.stop()

    def _read(self) -> tuple[list[Launch], int]:
        launches, left_out = list[Launch](), 0
        for recorder in _recorders:
            more, missing = recorder.read(self._begin.get(id(recorder), 0))
            launches += more
            left_out += missing
        return sorted(launches, key=lambda launch: launch.began), left_out

    @property
    def launches(self) -> list[Launch]:
        """What ran in the block, in the order in which it began. After the block only."""
        return self._found[0]

    @property
    def left_out(self) -> int:
        """Launches that there was no room for."""
        return self._found[1]
