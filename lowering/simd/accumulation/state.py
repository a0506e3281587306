"""Where a function of a task keeps what it accumulates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowering.llvm.descriptions import GlobalMemory
    from lowering.llvm.privatisation import Place
    from lowering.simd.accumulation.plan import AccumulationPlan
    from qdtrace.ir.program import Var


@dataclass(frozen=True, slots=True)
class ChunkCopy:
    """Memory that only this chunk sees."""

    memory: GlobalMemory
    """As many elements as the reference, those of all copies side by side (the last axis, where there are several);
    and one a lane more, where inactive lanes go."""
    count: int
    """Copies: lane l has number `l % count`."""


@dataclass(slots=True)
class Accumulators:
    """What the strategies of a plan have opened."""

    plan: AccumulationPlan
    registers: dict[Place, str] = field(default_factory=dict["Place", str])
    """Stack slots of vectors, one a place, which LLVM turns into registers."""
    copies: dict[Var, ChunkCopy] = field(default_factory=dict["Var", ChunkCopy])
    alone: str = ""
    """True (i1) when nobody else sees the shared arrays."""
