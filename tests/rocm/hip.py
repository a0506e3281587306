"""A library that stands in for HIP: its devices are the host's processor, and it takes note of which is current."""

import ctypes
import re
from types import SimpleNamespace
from typing import Any

from lowering.rocm.driver import RocmDriver
from lowering.runtime.registry import CPU
from lowering.simt.devices import Device
from tests.gpu.fake import FakeDriver
from tests.gpu.fake import _functions as fake_functions

I32, POINTER = ctypes.c_int32, ctypes.c_void_p
VERSION = 6 * 10_000_000 + 4 * 100_000


class Hip(SimpleNamespace):
    """Functions of HIP over a fake driver; `given` replaces some."""

    def __init__(self, fake: FakeDriver, devices: int = 2, chip: str = "gfx942:sramecc+:xnack-", **given: Any) -> None:
        self.fake, self.devices, self.chip = fake, devices, chip
        self.device = 0
        """The current one."""
        self.loaded: list[tuple[int, int]] = []
        """Of each module, its device and its number in the fake driver."""
        self.owner: dict[int, int] = {}
        """The device of each function."""
        super().__init__(**given)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("hip"):
            raise AttributeError(name)
        return getattr(self, re.sub("([A-Z])", lambda letter: "_" + letter[1].lower(), name[3:]).removeprefix("_"))

    def init(self, flags: Any) -> int:
        return 0

    def runtime_get_version(self, out: Any) -> int:
        return write(out, VERSION)

    def get_device_count(self, out: Any) -> int:
        return write(out, self.devices)

    def get_device_properties_r0600(self, out: Any, device: Any) -> int:
        assert len(out) == 1472
        chip = self.chip if isinstance(self.chip, str) else self.chip[device.value]
        out[1160 : 1160 + len(chip)] = chip.encode()
        return 0

    def get_device(self, out: Any) -> int:
        return write(out, self.device)

    def set_device(self, device: Any) -> int:
        self.device = device.value
        return 0

    def module_load_data(self, out: Any, code: bytes) -> int:
        self.loaded.append((self.device, self.fake.load(code)))
        return write(out, len(self.loaded))

    def module_get_function(self, out: Any, module: Any, name: bytes) -> int:
        device, library = self.loaded[module.value - 1]
        assert device == self.device
        found = self.fake.kernel(library, name.decode())
        self.owner[found] = device
        return write(out, found)

    def host_malloc(self, out: Any, nbytes: Any, flags: Any) -> int:
        assert flags.value == 0x40000003
        return write(out, self.fake.host_memory(nbytes.value))

    def drv_get_error_name(self, code: Any, out: Any) -> int:
        out._obj.value = b"hipError%d" % code.value
        return 0


def write(pointer: Any, value: int) -> int:
    pointer._obj.value = value
    return 0


# What handlers call: code that is linked stays, so these are the same for all tests.
of_stream: list[int] = [0]
"""The device of the stream of a call, or a code of failure when it is negative."""
launched: list[int] = []
"""Functions that were launched, by number."""


@ctypes.CFUNCTYPE(I32, POINTER, POINTER)
def _stream_device(stream: int, out: int) -> int:
    if of_stream[0] < 0:
        return -of_stream[0]
    I32.from_address(out).value = of_stream[0]
    return 0


@ctypes.CFUNCTYPE(I32, POINTER, *[I32] * 7, POINTER, POINTER, POINTER)
def _launch(function: int, *rest: Any) -> int:
    launched.append(function)
    return fake_functions["cuLaunchKernel"](function, *rest)


HANDLED = {
    "hipStreamGetDevice": _stream_device,
    "hipModuleLaunchKernel": _launch,
    "hipMemsetD8Async": fake_functions["cuMemsetD8Async"],
    "hipMemsetD16Async": fake_functions["cuMemsetD16Async"],
    "hipMemsetD32Async": fake_functions["cuMemsetD32Async"],
    "hipDrvGetErrorName": fake_functions["cuGetErrorName"],
    "hipEventRecord": fake_functions["cuEventRecord"],
}


class OnHost(RocmDriver):
    """The driver over such a library, with kernels for the host."""

    platform = CPU

    def __init__(self, hip: Hip) -> None:
        self.hip = hip
        super().__init__((hip,))  # type: ignore[arg-type]

    def address(self, function: str) -> int:
        kept, self._library = self._library, SimpleNamespace(**HANDLED)
        try:
            return super().address(function)
        finally:
            self._library = kept

    def code(self, text: str, device: Device) -> bytes:
        return self.hip.fake.code(text, device)
