"""NVIDIA's driver, through its C interface: the one file that knows libcuda.

Kernels are loaded as libraries, which belong to no context: one copy runs on all devices of a kind, and the first call
needs nothing to be current.
"""

from __future__ import annotations

import ctypes
import functools
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from typing import TYPE_CHECKING, Any, cast

import jax

from lowering.cuda.ptxas import assembled, assemblers
from lowering.gpu.driver import CUDA, one_kind
from lowering.gpu.library import Library
from lowering.runtime.registry import Platform
from lowering.simt.assembly import assembly
from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from lowering.simt.devices import Device

_LIBRARY = "libcuda.so.1"
_OLDEST = 12000
"""Version of the first driver with libraries of kernels."""
_NEEDS = f"needs a driver for CUDA {_OLDEST // 1000} or newer"
_LOG_BYTES = 8192
# values of the driver's enumerations
_COMPUTE_MAJOR, _COMPUTE_MINOR = 75, 76
_PORTABLE, _MAPPED = 1, 2
_PTX = 1
_ERROR_LOG, _ERROR_LOG_BYTES = 5, 6
_MOST_SHARED, _CARVEOUT = 8, 9
_SHARED_BYTES = 48 * 1024
"""Shared memory that a block may have without raising its kernel's limit."""


class CudaDriver(Library):
    """The driver of this machine: see `gpu.driver.Driver`."""

    platform = Platform("cuda", "CUDA")
    functions = CUDA
    maker, needs = "NVIDIA", _NEEDS

    def __init__(self, library: str = _LIBRARY, numbers: Sequence[int] | None = None) -> None:
        """`numbers` are the driver's numbers of the devices to use; None uses all."""
        self._given = numbers
        try:
            self._library = ctypes.CDLL(library)
        except OSError as e:
            raise BackendError(
                f"needs NVIDIA's driver ({library}), which is not on this machine",
                notes=(str(e),),
                help='name the chip to look at code without a device: f.lower(*args, target="sm_90")',
            ) from None
        version = c_int()
        self._call("cuInit", c_uint(0))
        self._call("cuDriverGetVersion", byref(version))
        if version.value < _OLDEST:
            got = f"{version.value // 1000}.{version.value % 1000 // 10}"
            raise BackendError(f"{_NEEDS}, got one for {got}")
        self._release = version.value // 1000

    def address(self, function: str) -> int:
        """Returns the address of one of the driver's functions."""
        return self._at(function)

    def architecture(self) -> str:
        """Returns the kind of the devices: "sm_90"."""
        asked = (_COMPUTE_MAJOR, _COMPUTE_MINOR)
        kinds = {"sm_" + "".join(str(self._attribute(k, a)) for a in asked) for k in self._numbers}
        return one_kind(kinds, "CUDA_VISIBLE_DEVICES")

    def code(self, text: str, device: Device) -> bytes:
        """Returns a cubin for the devices, by the first assembler that works or else by the driver's linker."""
        ptx = assembly(text, device)
        # a driver runs what newer assemblers of its own release make, not those of the next
        return assembled(ptx, device.name, self._release) or self.link(ptx)

    @property
    def made_by(self) -> str:
        """The identities of the installed assemblers, which code depends on besides LLVM."""
        return "\n".join(one.identity for one in assemblers())

    def link(self, assembly: str) -> bytes:
        """Returns the cubin that the driver itself makes from PTX."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (c_int * 2)(_ERROR_LOG, _ERROR_LOG_BYTES)
        values = (c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        text = assembly.encode() + b"\0"
        state, code, size = c_void_p(), c_void_p(), c_size_t()
        with self._context():
            self._call("cuLinkCreate_v2", c_uint(2), options, values, byref(state))
            try:
                given = (state, c_int(_PTX), text, c_size_t(len(text)), b"qdtrace", c_uint(0), None, None)
                self._call("cuLinkAddData_v2", *given, log=log)
                self._call("cuLinkComplete", state, byref(code), byref(size), log=log)
                return ctypes.string_at(code, size.value)
            finally:
                self._call("cuLinkDestroy", state)

    def load(self, code: bytes) -> int:
        """Loads a library of kernels from a cubin."""
        library = c_void_p()
        self._call("cuLibraryLoadData", byref(library), code, None, None, c_uint(0), None, None, c_uint(0))
        return library.value or 0

    def kernel(self, library: int, name: str, shared_bytes: int = 0, held: int = 0) -> int:
        """Returns the handle of a kernel; first raises its limit if it needs more than 48 KiB of shared memory."""
        kernel = c_void_p()
        self._call("cuLibraryGetKernel", byref(kernel), c_void_p(library), name.encode())
        attributes = {_MOST_SHARED: shared_bytes} if shared_bytes > _SHARED_BYTES else {}
        if held:
            attributes[_CARVEOUT] = held
        for attribute, value in attributes.items():
            for number in self._numbers:
                device = c_int()
                self._call("cuDeviceGet", byref(device), c_int(number))
                self._call("cuKernelSetAttribute", c_int(attribute), c_int(value), kernel, device)
        return kernel.value or 0

    def host_memory(self, nbytes: int) -> int:
        """Allocates pinned memory; with one address space for all, it has the same address on the devices."""
        memory = c_void_p()
        with self._context():
            self._call("cuMemHostAlloc", byref(memory), c_size_t(nbytes), c_uint(_PORTABLE | _MAPPED))
        ctypes.memset(memory, 0, nbytes)
        return memory.value or 0

    def event(self) -> int:
        """Creates an event with a time, in the context that JAX uses on the first device."""
        event = c_void_p()
        with self._context():
            self._call("cuEventCreate", byref(event), c_uint(0))
        return event.value or 0

    def elapsed(self, first: int, second: int) -> float | None:
        """Seconds between two events, once the second one has happened."""
        with self._context():
            return self._elapsed("cuEventSynchronize", "cuEventElapsedTime", first, second)

    @property
    def _numbers(self) -> Sequence[int]:
        if self._given is not None:
            return self._given
        count = c_int()
        self._call("cuDeviceGetCount", byref(count))
        return range(count.value)

    def _attribute(self, number: int, attribute: int) -> int:
        device, value = c_int(), c_int()
        self._call("cuDeviceGet", byref(device), c_int(number))
        self._call("cuDeviceGetAttribute", byref(value), c_int(attribute), device)
        return value.value

    @functools.cached_property
    def _primary(self) -> c_void_p:
        """The context that JAX uses on the first device; never released."""
        device, context = c_int(), c_void_p()
        self._call("cuDeviceGet", byref(device), c_int(self._numbers[0]))
        self._call("cuDevicePrimaryCtxRetain", byref(context), device)
        return context

    @contextmanager
    def _context(self) -> Generator[None]:
        """Opens a block in which a context is current, which the linker and pinned memory need."""
        self._call("cuCtxPushCurrent_v2", self._primary)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", byref(c_void_p()))


@functools.cache
def driver() -> CudaDriver:
    """Returns the driver for the devices that JAX uses in this process; it is loaded once."""
    try:
        devices = cast("list[Any]", jax.local_devices(backend="cuda"))
    except RuntimeError:  # without JAX's plugin: then there is code to look at, and nothing to run
        return CudaDriver()
    return CudaDriver(numbers=[device.local_hardware_id or 0 for device in devices])
