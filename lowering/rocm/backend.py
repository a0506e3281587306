"""The ROCm backend, and kinds of AMD's GPUs that code can be looked at for without one."""

from __future__ import annotations

import functools

from lowering.gpu.backend import GpuBackend, device_of
from lowering.rocm.driver import driver


class RocmBackend(GpuBackend):
    """Compiles programs for the AMD GPUs of this machine."""

    dialects = ("triton", "llvm", "amdgcn")

    def __init__(self, kind: str | None = None) -> None:
        """`kind` names a kind of chip ("gfx942") in place of that of this machine's devices."""
        super().__init__(functools.partial(device_of, driver, kind), driver)


gfx90a = functools.partial(RocmBackend, "gfx90a")
gfx942 = functools.partial(RocmBackend, "gfx942")
gfx950 = functools.partial(RocmBackend, "gfx950")
gfx1100 = functools.partial(RocmBackend, "gfx1100")
