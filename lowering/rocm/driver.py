"""AMD's driver, through HIP's C interface: the one file that knows libamdhip64.

A module of kernels belongs to one device. So each is loaded on all of them, and the handle of a kernel is a table with
its function on each device; `qd_launch` selects the function of the stream's device.
"""

from __future__ import annotations

import ctypes
import functools
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from typing import TYPE_CHECKING

from lowering.gpu.driver import HIP, LAUNCH_PARAMETERS, one_kind
from lowering.gpu.library import Library
from lowering.llvm.host import External, function, module_text
from lowering.llvm.target import Target
from lowering.runtime.cache import Artifact
from lowering.runtime.compile import make_runnable, object_code
from lowering.runtime.registry import Platform
from lowering.simt.code_object import code_object
from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lowering.llvm.host import I32, Code, Ptr
    from lowering.simt.devices import Device

_LIBRARIES = ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6")
_OLDEST = 6
"""The first version of ROCm that loads our code objects, and has the layout of properties that is read here."""
_NEEDS = f"needs ROCm {_OLDEST} or newer"
_VERSION_UNIT = 10_000_000
_PROPERTIES_BYTES, _NAME_AT, _NAME_BYTES = 1472, 1160, 256
"""Size of `hipDeviceProp_tR0600`; offset and size of the chip's name and features in it: "gfx942:sramecc+:xnack-"."""
_PORTABLE, _MAPPED, _COHERENT = 1, 2, 0x40000000
"""Flags for host memory; coherent: the host sees a kernel's store while the kernel runs."""

_DEVICE = External("i32 hipStreamGetDevice(ptr, ptr)")
_LAUNCH = External(f"i32 {HIP.launch}{LAUNCH_PARAMETERS}")


@function()
def qd_launch(
    c: Code, table: Ptr, bx: I32, by: I32, bz: I32, tx: I32, ty: I32, tz: I32, shared: I32, stream: Ptr,
    arguments: Ptr, extra: Ptr,
) -> I32:  # fmt: skip
    """Launches what a table has for the device of the stream."""
    place = c.memory("i32")
    code = _DEVICE(c, stream, place)
    c.give_if(code.differs(0), code)
    kernel = table.word(place.load("i32").to("i64")).load("ptr")
    return _LAUNCH(c, kernel, bx, by, bz, tx, ty, tz, shared, stream, arguments, extra)


class RocmDriver(Library):
    """The driver of this machine: see `gpu.driver.Driver`."""

    platform = Platform("rocm", "ROCM")
    functions = HIP
    maker, needs = "AMD", _NEEDS
    made_by = ""

    def __init__(self, libraries: Sequence[str] = _LIBRARIES) -> None:
        self._library = _loaded(libraries)
        self._modules: list[tuple[c_void_p, ...]] = []
        """The modules of each library, one per device."""
        self._tables: list[ctypes.Array[c_void_p]] = []
        self._call("hipInit", c_uint(0))
        version, count = c_int(), c_int()
        self._call("hipRuntimeGetVersion", byref(version))
        if version.value < _OLDEST * _VERSION_UNIT:
            raise BackendError(f"{_NEEDS}, got {version.value // _VERSION_UNIT}")
        self._call("hipGetDeviceCount", byref(count))
        self._count = count.value

    def address(self, function: str) -> int:
        """Returns the address of one of the driver's functions; the launch function is `qd_launch`."""
        if function == HIP.launch:
            return self._launch
        return self._at(function)

    def architecture(self) -> str:
        """Returns the kind of the devices: "gfx942"."""
        kinds = {self._name_of(k) for k in range(self._count)}
        return one_kind(kinds, "HIP_VISIBLE_DEVICES")

    def code(self, text: str, device: Device) -> bytes:
        """Returns a code object for the devices."""
        return code_object(text, device)

    def load(self, code: bytes) -> int:
        """Loads a library of kernels from a code object, on each device."""
        modules: list[c_void_p] = []
        for device in range(self._count):
            module = c_void_p()
            with self._current(device):
                self._call("hipModuleLoadData", byref(module), code)
            modules.append(module)
        self._modules.append(tuple(modules))
        return len(self._modules) - 1

    def kernel(self, library: int, name: str, shared_bytes: int = 0, held: int = 0) -> int:
        """Returns the address of a table that has the kernel's function on each device.

        HIP lets a launch use all shared memory, so `shared_bytes` raises no limit first. The cache is no part of that
        memory, so `held` has no meaning.
        """
        table = (c_void_p * self._count)()
        for device, module in enumerate(self._modules[library]):
            function = c_void_p()
            with self._current(device):
                self._call("hipModuleGetFunction", byref(function), module, name.encode())
            table[device] = function.value
        self._tables.append(table)
        return ctypes.addressof(table)

    def host_memory(self, nbytes: int) -> int:
        """Allocates pinned memory; it has the same address on the devices."""
        memory = c_void_p()
        self._call("hipHostMalloc", byref(memory), c_size_t(nbytes), c_uint(_PORTABLE | _MAPPED | _COHERENT))
        ctypes.memset(memory, 0, nbytes)
        return memory.value or 0

    def event(self) -> int:
        """Creates an event with a time, on the first device."""
        event = c_void_p()
        with self._current(0):
            self._call("hipEventCreateWithFlags", byref(event), c_uint(0))
        return event.value or 0

    def elapsed(self, first: int, second: int) -> float | None:
        """Seconds between two events, once the second one has happened."""
        return self._elapsed("hipEventSynchronize", "hipEventElapsedTime", first, second)

    @functools.cached_property
    def _launch(self) -> int:
        host = Target.host()
        imports = {function.name: self._at(function.name) for function in (_DEVICE, _LAUNCH)}
        name = f"hip_launch_{imports[HIP.launch]:x}"
        code = Artifact(object_code(module_text([qd_launch], host.triple), host), {})
        return make_runnable(name, code, (qd_launch.name,), imports, host)[qd_launch.name]

    def _name_of(self, device: int) -> str:
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        self._call("hipGetDevicePropertiesR0600", properties, c_int(device))
        name = properties.raw[_NAME_AT : _NAME_AT + _NAME_BYTES].split(b"\0")[0].decode()
        return name.split(":")[0]

    @contextmanager
    def _current(self, device: int) -> Generator[None]:
        """Opens a block in which a device is current in this thread."""
        before = c_int()
        self._call("hipGetDevice", byref(before))
        self._call("hipSetDevice", c_int(device))
        try:
            yield
        finally:
            self._call("hipSetDevice", before)


def _loaded(libraries: Sequence[str]) -> ctypes.CDLL:
    notes: list[str] = []
    for library in libraries:
        try:
            return ctypes.CDLL(library)
        except OSError as e:
            notes.append(str(e))
    raise BackendError(
        f"needs AMD's driver ({libraries[0]}), which is not on this machine",
        notes=tuple(notes),
        help='name the chip to look at code without a device: f.lower(*args, target="gfx942")',
    )


@functools.cache
def driver() -> RocmDriver:
    """Returns the driver; it is loaded once."""
    return RocmDriver()
