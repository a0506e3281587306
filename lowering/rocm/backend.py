"""The ROCm backend, and kinds of AMD's GPUs that code can be looked at for without one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from lowering.gpu.backend import GpuBackend
from lowering.rocm.driver import driver
from lowering.simt.devices import device

if TYPE_CHECKING:
    from lowering.simt.devices import Device


class RocmBackend(GpuBackend):
    """Compiles programs for the AMD GPUs of this machine."""

    dialects = ("triton", "llvm", "amdgcn")

    def __init__(self, kind: str | None = None) -> None:
        """`kind` names a kind of chip ("gfx942") in place of that of this machine's devices."""
        super().__init__(_of_this_machine if kind is None else functools.partial(device, kind), driver)


def _of_this_machine() -> Device:
    return device(driver().architecture())


gfx90a = functools.partial(RocmBackend, "gfx90a")
gfx942 = functools.partial(RocmBackend, "gfx942")
gfx950 = functools.partial(RocmBackend, "gfx950")
gfx1100 = functools.partial(RocmBackend, "gfx1100")
