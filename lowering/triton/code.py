"""What the emitter gives: Triton source, and how its kernels are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qdtrace.ir.program import Var


@dataclass(frozen=True, slots=True)
class TritonLaunch:
    """One kernel of a task.

    All kernels of a task take a pointer for each of `TritonCode.refs`, `start` and `stop`, which are not looked at, a
    pointer to the word of failures and one to the scratch; then `BLOCK`, a constant.
    """

    name: str
    """Of the function in the source."""
    programs: int
    """Of the launch."""
    block: int
    """Value of `BLOCK`: lanes of a program."""
    warps: int
    """Of a program."""
    registers: int = 0
    """Of a thread on NVIDIA's GPUs, at most; 0: as many as the code takes."""


@dataclass(frozen=True, slots=True)
class TritonCode:
    """The code of one task."""

    text: str
    """A Python module."""
    refs: tuple[Var, ...]
    """References it takes, in order."""
    launches: tuple[TritonLaunch, ...]
    """Kernels to launch, in order; none for a range that is empty."""
    scratch_bytes: int
    """Memory, of any content, that the kernels share."""
    cost: int
    """Estimated scalar operations of one iteration."""
    reason: str
    """How it was made."""
    fast_math: bool
    """Whether multiplications and additions may be fused."""
