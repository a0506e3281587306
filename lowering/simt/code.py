"""The emitter's result: the code of a task as kernels, and their launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.ir.program import Var


@frozen(slots=True)
class Launch:
    """One kernel of a task.

    All kernels of a task take, as 64 bit values in this order: a pointer for each of `KernelCode.refs`, the first index
    and the end of the range (both 0 where they are known only on the device), a pointer to the word of failures, and a
    pointer to the scratch of the task.
    """

    name: str
    """Name of the kernel in the module."""
    threads: int
    """Threads of a block."""
    blocks: int
    """Blocks of the launch; 0: one thread per group of iterations, for a range that the host knows."""
    group: int = 1
    """Neighbouring iterations that a thread takes."""
    shared_bytes: int = 0
    """Dynamic shared memory of a block, besides what the module declares."""
    null_arguments: int = 0
    """Number of null pointers that the kernel takes after the arguments above."""
    held: int = 0
    """Part of a multiprocessor's shared memory that its blocks may take together, in percent, as the rest is cache;
    0: as much as they can."""

    def blocks_for(self, iterations: int) -> int:
        """Returns the number of blocks of a launch over a range of so many iterations."""
        return self.blocks or -(-iterations // (self.threads * self.group))


@frozen(slots=True)
class KernelCode:
    """The code of one task."""

    text: str
    """An LLVM IR module."""
    refs: tuple[Var, ...]
    """References that the kernels take, in order."""
    launches: tuple[Launch, ...]
    """Kernels to launch, in order."""
    scratch_bytes: int
    """Uninitialised device memory that the kernels of the task share."""
    lanes: int
    """Iterations that run at a time on the whole device, about."""
    reason: str
    """The parallelisation in words, with its reasons, for reports."""
    stack_bytes: int = 0
    """Bytes of the scratch that hold private arrays of threads."""
