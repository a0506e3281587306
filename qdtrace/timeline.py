"""Launches on the timeline of `jax.profiler`, under their names, on the threads that ran them.

XLA's profiler calls registered plug-ins when a trace begins and ends, and asks them for events as a message of protocol
buffers (`XSpace`); the interface is PJRT's table of C functions. Here they are functions of Python. None of them runs
during a call, and without a trace they cost nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import threading
import time
from ctypes import c_int64, c_void_p
from typing import TYPE_CHECKING, Any

from qdtrace.launches import Listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from qdtrace.launches import Launch

HOST_PLANE = "/host:CPU"
"""Name of XLA's plane of threads; planes of one name are merged, so launches are among XLA's threads."""
_CAPSULE = b"pjrt_c_api"
_PROFILER_EXTENSION = 1
_PICOSECONDS = 1000
# where the arguments of the functions keep: a new profiler, a buffer, its size
_CREATED, _BUFFER, _SIZE = 24, 16, 24


class _Session:
    """The state of a trace; a process has one trace at a time."""

    def __init__(self) -> None:
        self._listening: Listening | None = None
        self._message = ctypes.create_string_buffer(0)

    def create(self, arguments: int) -> None:
        c_int64.from_address(arguments + _CREATED).value = 1

    def start(self, _: int) -> None:
        self._listening = Listening().__enter__()

    def stop(self, _: int) -> None:
        if self._listening is not None:
            self._listening.__exit__(None, None, None)

    def collect(self, arguments: int) -> None:
        """Returns the message's size and address, or, in some versions' second call, fills memory of the caller."""
        buffer = c_void_p.from_address(arguments + _BUFFER)
        if not buffer.value:
            found = [] if self._listening is None else self._listening.launches
            message = space_of(found, time.time_ns() - time.monotonic_ns())
            self._message = ctypes.create_string_buffer(message, len(message))
            buffer.value = ctypes.addressof(self._message)
            c_int64.from_address(arguments + _SIZE).value = len(message)
        elif buffer.value != ctypes.addressof(self._message):
            ctypes.memmove(buffer.value, self._message, len(self._message))

    def destroy(self, _: int) -> None:
        self._listening = None


def space_of(launches: Sequence[Launch], epoch: int) -> bytes:
    """Returns the message for launches, one line per thread; `epoch`: nanoseconds since 1970 at their clock's zero."""
    names = {label: number for number, label in enumerate(dict.fromkeys(one.label for one in launches), 1)}
    first = min((one.began for one in launches), default=0)
    lines: dict[int, list[bytes]] = {}
    for one in launches:
        for run in (one, *one.parts):
            event = _number(1, names[one.label]) + _number(2, (run.began - first) * _PICOSECONDS)
            lines.setdefault(run.thread, []).append(event + _number(3, (run.ended - run.began) * _PICOSECONDS))
    known = {thread.ident: thread.name for thread in threading.enumerate()}
    fields = [_number(1, 1), _text(2, HOST_PLANE)]
    for number, (thread, events) in enumerate(lines.items(), 1):
        name = f"qdtrace {known.get(thread, f'thread {number}')}"
        head = _number(1, thread) + _text(2, name) + _number(3, epoch + first)
        fields.append(_text(3, head + b"".join(_text(4, event) for event in events)))
    for label, number in names.items():
        fields.append(_text(4, _number(1, number) + _text(2, _number(1, number) + _text(2, label))))
    return _text(1, b"".join(fields)) if launches else b""


def _number(field: int, value: int) -> bytes:
    return bytes((*_groups(field << 3), *_groups(value)))


def _text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return bytes((*_groups(field << 3 | 2), *_groups(len(data)))) + data


def _groups(value: int) -> Iterator[int]:
    """Yields a number in bytes of seven bits, the lowest first."""
    while value > 127:
        yield value & 127 | 128
        value >>= 7
    yield value


_FUNCTION = ctypes.CFUNCTYPE(c_void_p, c_void_p)
_kept: list[Any] = []


def register() -> None:
    """Registers launches with JAX's profiler, once per process."""
    if _kept:
        return
    session = _Session()
    asked = (session.create, session.destroy, session.start, session.stop, session.collect)
    nothing = _FUNCTION(lambda _: None)  # no function here returns an error
    functions = [nothing] * 3 + [_FUNCTION(function) for function in asked]
    addresses = [ctypes.cast(function, c_void_p).value for function in functions]
    table = (c_void_p * 10)(80, None, *addresses)
    extension = (c_void_p * 5)(40, _PROFILER_EXTENSION, None, ctypes.addressof(table), None)
    interface = (c_void_p * 16)(128, ctypes.addressof(extension))
    atexit.register(session.destroy, 0)  # a trace that nobody ends ends with the process, without this module
    _kept.extend((session, functions, table, extension, interface))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_kept))
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, (c_void_p, ctypes.c_char_p, c_void_p)
    _kept.append(_CAPSULE)
    with contextlib.suppress(ImportError, AttributeError):  # of jaxlib alone; then traces are without our events
        profiler = importlib.import_module("jaxlib._profiler")
        profiler.register_plugin_profiler(make(ctypes.addressof(interface), _CAPSULE, None))
