"""The ROCm backend, and kinds of AMD's GPUs that code can be looked at for without one."""

from __future__ import annotations

import functools

from lowering.gpu.backend import GpuBackend, device_of
from lowering.rocm.driver import driver
from lowering.simt.devices import ROCM, kinds_of


class RocmBackend(GpuBackend):
    """Compiles programs for the AMD GPUs of this machine."""

    dialects = ("triton", "llvm", "amdgcn")
    kinds = kinds_of(ROCM)

    def __init__(self, kind: str | None = None) -> None:
        """`kind` names a kind of chip ("gfx942") in place of that of this machine's devices."""
        super().__init__(functools.partial(device_of, driver, kind), driver)
