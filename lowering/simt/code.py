"""What the emitter gives: the code of a task as kernels, and how they are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.ir.program import Var


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel of a task.

    All kernels of a task take, as 64 bit values in this order: a pointer for each of `KernelCode.refs`, the first index
    and the end of the range (both 0 where they are known only on the device), a pointer to the word of failures, and a
    pointer to the scratch of the task.
    """

    name: str
    """Of the kernel in the module."""
    threads: int
    """Of a block."""
    blocks: int
    """Of the launch; 0: as many as give each group of iterations, of a range known to the host, a thread."""
    group: int = 1
    """Neighbouring iterations that a thread takes."""
    shared_bytes: int = 0
    """Shared memory of a block besides what the module says."""
    null_arguments: int = 0
    """Null pointers that the kernel takes behind the arguments above."""

    def blocks_for(self, iterations: int) -> int:
        """Of the launch over a range of so many iterations."""
        return self.blocks or -(-iterations // (self.threads * self.group))


@dataclass(frozen=True, slots=True)
class KernelCode:
    """The code of one task."""

    text: str
    """An LLVM IR module."""
    refs: tuple[Var, ...]
    """References it takes, in order."""
    launches: tuple[Launch, ...]
    """Kernels to launch, in order."""
    scratch_bytes: int
    """Memory, of any content, that the kernels share."""
    cost: int
    """Estimated scalar operations of one iteration."""
    lanes: int
    """Iterations that run at a time on the whole device, about."""
    reason: str
    """How it was made, and why."""
    stack_bytes: int = 0
    """Of the scratch: private arrays of threads."""
