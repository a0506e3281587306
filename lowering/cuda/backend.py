"""The CUDA backend, and kinds of NVIDIA's GPUs that code can be looked at for without one."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from lowering.cuda.driver import driver
from lowering.cuda.ptxas import assemblers
from lowering.gpu.backend import GpuBackend, device_of

if TYPE_CHECKING:
    from qdtrace.config import Options


class CudaBackend(GpuBackend):
    """Compiles programs for the NVIDIA GPUs of this machine."""

    dialects = ("triton", "llvm", "ptx")

    def __init__(self, kind: str | None = None) -> None:
        """`kind` names a kind of chip ("sm_90") in place of that of this machine's devices."""
        super().__init__(functools.partial(device_of, driver, kind), driver)

    def info(self, options: Options) -> dict[str, str]:
        """Returns device, the first assembler that runs, cache and versions, in words."""
        found = next((one for one in assemblers() if one.runs), None)
        made_by = str(found.path) if found else "the driver's linker; kernels may take more registers than they need"
        return super().info(options) | {"assembler": made_by}


sm_80 = functools.partial(CudaBackend, "sm_80")
sm_86 = functools.partial(CudaBackend, "sm_86")
sm_89 = functools.partial(CudaBackend, "sm_89")
sm_90 = functools.partial(CudaBackend, "sm_90")
sm_100 = functools.partial(CudaBackend, "sm_100")
sm_120 = functools.partial(CudaBackend, "sm_120")
