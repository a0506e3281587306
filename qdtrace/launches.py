"""What ran when: handlers write launches down while somebody listens, and backends say where they can be read.

While nobody listens a handler looks at one word a launch and writes nothing. `qd.profile` and the timeline of
`jax.profiler` listen.
"""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

if TYPE_CHECKING:
    from types import TracebackType

    from qdtrace.ir.program import Program


_NUMBERED = re.compile(r"(.*)\.(?:serial)?\d+(\w*)")
"""A name that a task has when the user gives none."""


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
    together: int = 1
    """Tasks that one kernel of a GPU runs one after the other, from `number` on."""
    is_further: bool = False
    """It is one more kernel of a task that a GPU has begun with another one."""
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
        first, last = (label_of(self.program, k) for k in (self.number, self.number + self.together - 1))
        return first if first == last else f"{first} to {last}"


@dataclass(frozen=True, slots=True)
class Part:
    """What one more thread did of a launch."""

    thread: int
    began: int
    ended: int


def label_of(program: Program, number: int) -> str:
    """What a task is called on tables and timelines: the name that the user gave, else function and line."""
    task = program.tasks[number]
    if "." not in task.name or task.loc is None:  # names that a user gives are words
        return task.name
    first, *joined = task.name.split("+")
    numbered = _NUMBERED.fullmatch(first)
    label = f"{numbered[1]}:{task.loc.line}{numbered[2].replace('_', ' ')}" if numbered else first
    return label + "+..." * bool(joined)


class Recorder(Protocol):
    """What a backend knows of the launches of its handlers."""

    on_device: bool
    """Launching is all that handlers do, so times cost something: they are written for those who ask for them."""

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


_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
_listening: list[Listening] = []
_lock = threading.RLock()


def add(recorder: Recorder) -> None:
    """Makes a recorder known."""
    with _lock:
        _recorders.add(recorder)
        if any(listening.wants(recorder) for listening in _listening):
            recorder.start()


class Listening:
    """A block in which launches are written down; several may overlap."""

    def __init__(self, *, devices: bool = False) -> None:
        """`devices`: those on GPUs too."""
        self.devices = devices

    def wants(self, recorder: Recorder) -> bool:
        """Whether it listens to this one."""
        return self.devices or not recorder.on_device

    def _alone_with(self) -> list[Recorder]:
        """The recorders that nobody else listens to."""
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
        """What ran in the block, in the order in which it began. After the block only."""
        return self._found[0]

    @property
    def left_out(self) -> int:
        """Launches that there was no room for."""
        return self._found[1]
