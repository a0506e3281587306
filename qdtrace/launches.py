"""Times of launches: handlers write them down while somebody listens, and backends register where to read them.

While nobody listens a handler loads one word per launch and writes nothing. `qd.profile` and the timeline of
`jax.profiler` listen.
"""

from __future__ import annotations

import re
import threading
import weakref
from typing import TYPE_CHECKING, Protocol, Self

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from types import TracebackType

    from qdtrace.ir.program import Program


_NUMBERED = re.compile(r"(.*)\.(?:serial)?\d+(\w*)")
"""Pattern of task names that the user has not given."""


@frozen(slots=True)
class Launch:
    """One launch of a task, or one fill of memory with an initial value."""

    program: Program
    """The compiled graph."""
    number: int
    """Number of the task, or of the task that a fill precedes (the number of tasks for a fill after the last)."""
    is_fill: bool
    began: int
    """Start in nanoseconds of `time.monotonic_ns`."""
    ended: int
    iterations: int
    filled: int = 0
    """Number of bytes that a fill sets."""
    thread: int = 0
    """`threading.get_ident()` of the CPU thread that ran it and waited for the others."""
    parts: tuple[Part, ...] = ()
    """The parts that other threads ran."""
    together: int = 1
    """Number of tasks, from `number` on, that one kernel of a GPU runs in order."""
    is_further: bool = False
    """True for a further kernel of a task that a GPU began with another kernel."""
    device: str = "cpu"
    """The platform, by JAX's name."""

    @property
    def seconds(self) -> float:
        """The duration in seconds."""
        return (self.ended - self.began) * 1e-9

    @property
    def label(self) -> str:
        """The name that the user gave, or function and line."""
        tasks = self.program.tasks
        if self.is_fill:
            return f"fill before {label_of(self.program, self.number)}" if self.number < len(tasks) else "fill"
        first, last = (label_of(self.program, k) for k in (self.number, self.number + self.together - 1))
        return first if first == last else f"{first} to {last}"


@frozen(slots=True)
class Part:
    """The part of a launch that a further thread ran."""

    thread: int
    began: int
    ended: int


def label_of(program: Program, number: int) -> str:
    """Returns the label of a task in tables and timelines: the name that the user gave, or function and line."""
    task = program.tasks[number]
    if "." not in task.name or task.loc is None:  # names that a user gives are words
        return task.name
    first, *joined = task.name.split("+")
    numbered = _NUMBERED.fullmatch(first)
    label = f"{numbered[1]}:{task.loc.line}{numbered[2].replace('_', ' ')}" if numbered else first
    return label + "+..." * bool(joined)


class Recorder(Protocol):
    """A backend's log of its handlers' launches."""

    on_device: bool
    """True if handlers only enqueue, so that timing has a cost, and is done only for those who ask for it."""

    def start(self) -> None:
        """Clears the log and makes handlers write their launches into it."""
        ...

    def stop(self) -> None:
        """Makes handlers write no more."""
        ...

    def count(self) -> int:
        """Returns the number of records of launches and parts."""
        ...

    def read(self, begin: int) -> tuple[list[Launch], int]:
        """Returns the launches from record `begin` on, in the order of their ends, and how many found no room."""
        ...


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
_listening: list[Listening] = []
_lock = threading.RLock()


def add(recorder: Recorder) -> None:
    """Registers a recorder."""
    with _lock:
        _recorders.add(recorder)
        if any(listening.wants(recorder) for listening in _listening):
            recorder.start()


class Listening:
    """A block in which launches are written down; several may overlap."""

    def __init__(self, *, devices: bool = False) -> None:
        """`devices` listens to launches on GPUs too."""
        self.devices = devices

    def wants(self, recorder: Recorder) -> bool:
        """Returns whether it listens to this recorder."""
        return self.devices or not recorder.on_device

    def _alone_with(self) -> list[Recorder]:
        """Returns the recorders that nobody else listens to."""
        others = [other for other in _listening if other is not self]
        return [r for r in _recorders if self.wants(r) and not any(other.wants(r) for other in others)]

    def __enter__(self) -> Self:
        with _lock:
            for recorder in self._alone_with():
                recorder.start()
            _listening.append(self)
            self._begin = {id(recorder): recorder.count() for recorder in _recorders}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with _lock:
            self._found = self._read()
            for recorder in self._alone_with():
                recorder.stop()
            _listening.remove(self)

    def _read(self) -> tuple[list[Launch], int]:
        launches, left_out = list[Launch](), 0
        for recorder in filter(self.wants, _recorders):
            more, missing = recorder.read(self._begin.get(id(recorder), 0))
            launches += more
            left_out += missing
        return sorted(launches, key=lambda launch: launch.began), left_out

    @property
    def launches(self) -> list[Launch]:
        """The launches in the block, in the order of their starts; available after the block."""
        return self._found[0]

    @property
    def left_out(self) -> int:
        """The number of launches for which there was no room."""
        return self._found[1]
