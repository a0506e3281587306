"""The CUDA backend, and kinds of NVIDIA's GPUs that code can be looked at for without one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from lowering.cuda.driver import driver
from lowering.cuda.ptxas import assemblers
from lowering.gpu.backend import GpuBackend, device_of
from lowering.simt.devices import CUDA, kinds_of

if TYPE_CHECKING:
    from qdtrace.config import Options


class CudaBackend(GpuBackend):
    """Compiles programs for the NVIDIA GPUs of this machine."""

    dialects = ("triton", "llvm", "ptx")
    kinds = kinds_of(CUDA)

    def __init__(self, kind: str | None = None) -> None:
        """`kind` names a kind of chip ("sm_90") in place of that of this machine's devices."""
        super().__init__(functools.partial(device_of, driver, kind), driver)

    def info(self, options: Options) -> dict[str, str]:
        """Returns device, the first assembler that runs, cache and versions, in words."""
        found = next((one for one in assemblers() if one.runs), None)
        made_by = str(found.path) if found else "the driver's linker; kernels may take more registers than they need"
        return super().info(options) | {"assembler": made_by}
