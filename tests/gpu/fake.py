"""A driver without a device: it takes note of what handlers ask of it, and can run kernels on the host.

Its functions have the names and types of CUDA's, so the code of handlers is the one that a device gets. Kernels
are emitted for a `host_device`, and what it takes is their LLVM text. XLA's CPU client calls the handlers, so only the
stream is not what it is on a device.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any
from unittest import mock
from weakref import WeakSet

import llvmlite.binding as llvm

from lowering.gpu import handler
from lowering.gpu.backend import GpuBackend
from lowering.gpu.driver import CUDA
from lowering.gpu.fill import FILL
from lowering.llvm.host import function
from lowering.llvm.target import Target
from lowering.runtime import compile
from lowering.runtime.registry import CPU
from lowering.simt.assembly import assembly
from lowering.simt.devices import device as named
from qdtrace import failures, launches
from tests.lowering.kernels import host_device, intrinsics, launch_on_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowering.llvm.host import Code, Ptr
    from lowering.simt.devices import Device

I8, I16, I32, I64, POINTER = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
STREAM = 0x57EA
_COUNT = "qd_argument_count"
_names = itertools.count()


@dataclass(frozen=True)
class Launched:
    """A launch that was asked for."""

    name: str
    blocks: int
    threads: int
    arguments: tuple[int, ...]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Filled:
    """A fill that was asked for."""

    address: int
    width: int
    number: int
    count: int


@dataclass(frozen=True)
class _Kernel:
    name: str
    address: int
    argument_count: int
    waits: bool
    library: llvm.ResourceTracker | None


@dataclass
class FakeDriver:
    """See `gpu.driver.Driver`."""

    runs: bool = True
    """Kernels and fills are executed."""
    asked: list[Launched | Filled] = field(default_factory=list)
    refusal: int = 0
    """The code that every launch and fill gives."""
    looks: int | None = None
    """Kernels are a chip's, which nothing here can run: take note of so many arguments of each."""
    platform = CPU
    functions = CUDA
    made_by = ""

    def __post_init__(self) -> None:
        self._target = Target.named("scalar")
        self._jit = llvm.create_lljit_compiler(self._target.llvm_machine(), use_jit_link=True)
        self._libraries: list[bytes] = []
        self._times: list[int | None] = []
        self.kernels: list[tuple[str, int, int]] = []
        self._intrinsics = intrinsics()  # here: they are linked once, and kernels are loaded by several threads

    def address(self, function: str) -> int:
        return ctypes.cast(_functions[function], POINTER).value or 0

    def architecture(self) -> str:
        return "host"

    def code(self, text: str, device: Device) -> bytes:
        if self.looks is not None:
            return assembly(text, device).encode()
        return compile.machine_code(_counted(text), self._target)

    def load(self, code: bytes) -> int:
        self._libraries.append(code)
        return len(self._libraries)

    def kernel(self, library: int, name: str, shared_bytes: int = 0, held: int = 0) -> int:
        code = self._libraries[library - 1]
        self.kernels.append((name, library, shared_bytes))
        own = name.rpartition("__")[2]
        if self.looks is not None:
            assert name.encode() in code
            _kernels.append(_Kernel(own, 0, self.looks, False, None))
            return len(_kernels)
        exports = (name, *(() if name == FILL else (_COUNT,)))
        builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        for symbol in exports:
            builder.export_symbol(symbol)
        for symbol, address in self._intrinsics.items():
            builder.import_symbol(symbol, address)
        linked = builder.link(self._jit, f"library{next(_names)}")
        count = 3 if name == FILL else I64.from_address(linked[_COUNT]).value
        _kernels.append(_Kernel(own, linked[name], count, b"host_barrier" in code, linked))
        _kept.append(self)
        return len(_kernels)

    def host_memory(self, nbytes: int) -> int:
        memory = ctypes.create_string_buffer(nbytes)
        _kept.append(memory)
        return ctypes.addressof(memory)

    def event(self) -> int:
        self._times.append(None)
        return len(self._times)

    def record(self, event: int, stream: int) -> int:
        assert stream == STREAM
        self._times[event - 1] = len(self.asked)
        return 0

    def elapsed(self, first: int, second: int) -> float | None:
        """A millisecond for each launch or fill."""
        began, ended = self._times[first - 1], self._times[second - 1]
        return None if began is None or ended is None else (ended - began) * 1e-3

    def launch(self, kernel: int, *rest: Any) -> int:
        blocks, y, z, threads, ty, tz, shared, stream, pointers, extra = rest
        assert (y, z, ty, tz, stream, extra) == (1, 1, 1, 1, STREAM, None)
        found = _kernels[kernel - 1]
        words = tuple(I64.from_address(p).value for p in (POINTER * found.argument_count).from_address(pointers))
        self.asked.append(Launched(found.name, blocks, threads, words, shared))
        if self.runs and not self.refusal:
            with _stream:
                launch_on_host(found.address, blocks, threads, words, found.waits)
        return self.refusal

    def fill(self, width: int, address: int, number: int, count: int, stream: int) -> int:
        assert stream == STREAM
        number &= (1 << 8 * width) - 1
        self.asked.append(Filled(address, width, number, count))
        if self.runs and not self.refusal:
            data = number.to_bytes(width, "little") * count
            ctypes.memmove(address, data, len(data))
        return self.refusal


# Code that is linked stays, and with it what it calls: the same functions for all drivers, one of which is current.
_current: list[FakeDriver] = []
_kernels: list[_Kernel] = []
_kept: list[object] = []
_stream = threading.Lock()
"""Kernels run one after the other, whichever threads call: their blocks and barriers are the same."""


def _fills(width: int, number: Any) -> Any:
    call = functools.partial(lambda w, *rest: _current[-1].fill(w, *rest), width)
    return ctypes.CFUNCTYPE(I32, I64, number, I64, POINTER)(call)


@ctypes.CFUNCTYPE(I32, I32, POINTER)
def _error_name(code: int, place: int) -> int:
    name = ctypes.c_char_p(b"FAKE_ERROR_%d" % code)
    _kept.append(name)
    POINTER.from_address(place).value = ctypes.cast(name, POINTER).value if code != 99 else None
    return 0


@ctypes.CFUNCTYPE(I32, POINTER, *[I32] * 7, POINTER, POINTER, POINTER)
def _launch(*arguments: Any) -> int:
    return _current[-1].launch(*arguments)


@ctypes.CFUNCTYPE(I32, POINTER, POINTER)
def _record(event: int, stream: int) -> int:
    return _current[-1].record(event, stream)


_functions = {
    CUDA.record: _record,
    CUDA.launch: _launch,
    CUDA.fill8: _fills(1, I8),
    CUDA.fill16: _fills(2, I16),
    CUDA.fill32: _fills(4, I32),
    CUDA.error_name: _error_name,
}


def _counted(text: str) -> str:
    """The module with the number of arguments that its kernels take."""
    taken = re.search(r"@\w*qd_kernel\((.*)\)", text)
    return text if taken is None else f"{text}\n@{_COUNT} = constant i64 {taken[1].count('%')}\n"


@function()
def get_stream(c: Code, frame: Ptr, place: Ptr) -> Ptr:
    """The stream of a call, which XLA's client of processors does not have."""
    place.store(STREAM)
    return c.value(None, "ptr")


_devices = itertools.count(2)


@contextmanager
def current(driver: FakeDriver) -> Iterator[None]:
    """A block in which handlers call this driver."""
    _current.append(driver)
    yield
    _current.pop()


@contextmanager
def watched_again() -> Iterator[None]:
    """What is looked at for failures is afterwards what it was before."""
    before = dict(failures.watched)
    try:
        yield
    finally:
        failures.watched.clear()
        failures.watched.update(before)
        failures.expect_what_is_watched()


@contextmanager
def fake_backend(
    driver: FakeDriver | None = None, kind: int | None = None, chip: str | None = None
) -> Iterator[tuple[GpuBackend, FakeDriver]]:
    """A backend of a fake device, with threads of one small block (the option `block_dim` must say as much).

    `kind` tells devices apart for XLA, which keeps a handler for ever; every one has another when it is None. With a
    `chip`, code is that of the chip, and is not run.
    """
    found = driver or FakeDriver()
    number = next(_devices) if kind is None else kind
    device = host_device(2) if chip is None else named(chip)
    device = replace(device, target=replace(device.target, name=f"fake{number}"))
    with (
        watched_again(),
        current(found),
        mock.patch.object(handler, "get_stream", get_stream),
        # its log is read in the block alone: the addresses of its launchers may be those of others afterwards
        mock.patch.object(launches, "_recorders", WeakSet(launches._recorders)),
    ):
        yield GpuBackend(lambda: device, lambda: found), found
