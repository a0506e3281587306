"""The memory in which a function of a task keeps its accumulations."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen, mutable

if TYPE_CHECKING:
    from lowering.llvm.descriptions import GlobalMemory
    from lowering.plan.sums import Place
    from lowering.simd.accumulation.plan import AccumulationPlan
    from qdtrace.ir.program import Var


@frozen(slots=True)
class ChunkCopy:
    """A privatised array that only its chunk sees."""

    memory: GlobalMemory
    """The elements of the reference, with all copies side by side (the last axis, if there are several), then one
    spare element per lane for inactive lanes."""
    count: int
    """Number of copies: lane l uses copy `l % count`."""


@mutable(slots=True)
class Accumulators:
    """The sums and copies that the strategies of a plan have opened."""

    plan: AccumulationPlan
    registers: dict[Place, str] = field(default_factory=dict["Place", str])
    """Stack slots of vectors, one per place; LLVM turns them into registers."""
    copies: dict[Var, ChunkCopy] = field(default_factory=dict["Var", ChunkCopy])
    alone: str = ""
    """Register of i1 that is true if no other thread sees the shared arrays."""
