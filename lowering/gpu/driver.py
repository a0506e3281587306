"""What is asked of the driver of a maker's GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from qdtrace.errors import BackendError

if TYPE_CHECKING:
    from lowering.runtime.registry import Platform
    from lowering.simt.devices import Device


@dataclass(frozen=True, slots=True)
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


class Driver(Protocol):
    """The driver of a maker's GPUs. All methods raise BackendError with the driver's words."""

    platform: Platform
    functions: Functions

    def address(self, function: str) -> int:
        """Where one of `functions` is."""
        ...

    def architecture(self) -> str:
        """The kind of the devices, as `simt.devices` names it."""
        ...

    @property
    def made_by(self) -> str:
        """What makes machine code, besides LLVM; empty where it is nothing that could be another tomorrow."""
        ...

    def code(self, text: str, device: Device) -> bytes:
        """Machine code for the devices of this machine from a module in LLVM's language."""
        ...

    def load(self, code: bytes) -> int:
        """A library of kernels that all devices can run. It is never unloaded."""
        ...

    def kernel(self, library: int, name: str, shared_bytes: int = 0) -> int:
        """What launches a kernel of a library, by its name, with so much shared memory besides its own."""
        ...

    def host_memory(self, nbytes: int) -> int:
        """Returns the address of zeroed host memory, the same on all devices. It is never freed."""
        ...

    def event(self) -> int:
        """Returns a new event for streams of the first device. It is never freed."""
        ...

    def elapsed(self, first: int, second: int) -> float | None:
        """Waits for two events, and gives the seconds between them; None where they were not both recorded."""
        ...


def one_kind(kinds: set[str], variable: str) -> str:
    """The kind of all devices. Raises BackendError, with what chooses some of them, where there are several."""
    if len(kinds) != 1:
        raise BackendError(
            f"needs devices of one kind, got {', '.join(sorted(kinds)) or 'none'}", help=f"choose some with {variable}"
        )
    return next(iter(kinds))
