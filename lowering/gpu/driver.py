"""The interface to the driver of one maker's GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from qdtrace.errors import BackendError
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from lowering.runtime.registry import Platform
    from lowering.simt.devices import Device


@frozen(slots=True)
class Functions:
    """Names of the driver's functions that handlers call. What they take is the same for CUDA and HIP."""

    launch: str
    """`(kernel, blocks x 3, threads x 3, shared bytes, stream, pointers to arguments, null)`."""
    fill8: str
    """`(address, value, number of values, stream)`, and so for wider values."""
    fill16: str
    fill32: str
    error_name: str
    """`(code, pointer to where a pointer to the name is stored)`."""
    record: str
    """`(event, stream)`."""

    @property
    def all(self) -> tuple[str, ...]:
        """The names."""
        return self.launch, self.fill8, self.fill16, self.fill32, self.error_name, self.record


CUDA = Functions(
    "cuLaunchKernel", "cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async", "cuGetErrorName", "cuEventRecord"
)
HIP = Functions(
    "hipModuleLaunchKernel", "hipMemsetD8Async", "hipMemsetD16Async", "hipMemsetD32Async", "hipDrvGetErrorName",
    "hipEventRecord",
)
LAUNCH_PARAMETERS = "(ptr, i32, i32, i32, i32, i32, i32, i32, ptr, ptr, ptr)"
"""Types of the parameters of `launch`."""


class Driver(Protocol):
    """The driver of a maker's GPUs. All methods raise BackendError with the driver's words."""

    platform: Platform
    functions: Functions

    def address(self, function: str) -> int:
        """Returns the address of one of `functions`."""
        ...

    def architecture(self) -> str:
        """Returns the kind of the devices, as `simt.devices` names it."""
        ...

    @property
    def made_by(self) -> str:
        """Identity of the tools, besides LLVM, that make machine code; empty if no tool can change."""
        ...

    def code(self, text: str, device: Device) -> bytes:
        """Returns machine code for this machine's devices from a module in LLVM's language."""
        ...

    def load(self, code: bytes) -> int:
        """Loads a library of kernels that all devices can run. It is never unloaded."""
        ...

    def kernel(self, library: int, name: str, shared_bytes: int = 0, held: int = 0) -> int:
        """Returns the handle of a kernel; launches give it `shared_bytes` besides its own shared memory. All its blocks
        on a multiprocessor take at most `held` percent of that memory, if the driver follows; 0: no limit."""
        ...

    def host_memory(self, nbytes: int) -> int:
        """Returns the address of zeroed host memory, the same on all devices. It is never freed."""
        ...

    def event(self) -> int:
        """Returns a new event for streams of the first device. It is never freed."""
        ...

    def elapsed(self, first: int, second: int) -> float | None:
        """Waits for two events and returns the seconds between them, or None if they were not both recorded."""
        ...


def one_kind(kinds: set[str], variable: str) -> str:
    """Returns the one kind of all devices. Raises BackendError if there are several; `variable` selects devices."""
    if len(kinds) != 1:
        raise BackendError(
            f"needs devices of one kind, got {', '.join(sorted(kinds)) or 'none'}", help=f"choose some with {variable}"
        )
    return next(iter(kinds))
