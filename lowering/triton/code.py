"""The emitter's result: Triton source, and the launches of its kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from qdtrace.ir.program import Var


@frozen(slots=True)
class TritonLaunch:
    """One kernel of a task.

    All kernels of a task take a pointer for each of `TritonCode.refs`, `start` and `stop`, which they ignore, a
    pointer to the word of failures and one to the scratch; then `BLOCK`, a constant.
    """

    name: str
    """Name of the kernel's function in the source."""
    programs: int
    """Programs of the launch."""
    block: int
    """Value of `BLOCK`: the lanes of a program."""
    warps: int
    """Warps of a program."""
    registers: int = 0
    """Limit of registers per thread on NVIDIA's GPUs; 0: none."""


@frozen(slots=True)
class TritonCode:
    """The code of one task."""

    text: str
    """A Python module."""
    refs: tuple[Var, ...]
    """References that the kernels take, in order."""
    launches: tuple[TritonLaunch, ...]
    """Kernels to launch, in order; none for a range that is empty."""
    scratch_bytes: int
    """Uninitialised device memory that the kernels of the task share."""
    fast_math: bool
    """True if multiplications and additions may be fused."""
