"""The choice of what to do about lanes whose loops take different numbers of trips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.divergence.block_plan import BlockPlan, PartPlan, plan_blocks
from lowering.simd.divergence.ordering import find_ordering
from lowering.simd.divergence.refill import Refill, find_refill
from lowering.simd.divergence.refill_task import plan_refill
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.options import EmitOptions
    from lowering.llvm.target import Target
    from lowering.simd.accumulation.plan import AccumulationPlan
    from lowering.simd.lane_facts import LaneFacts
    from lowering.simd.shape import Shape


@frozen(eq=False)
class Divergence:
    """The choice for one task. `refill` excludes `blocks`."""

    refill: Refill | None
    refilled: PartPlan | None
    """The plan of the task whose lanes are refilled."""
    blocks: BlockPlan | None

    @property
    def is_masks(self) -> bool:
        """Returns whether lanes run under masks alone, in the order of the task."""
        return self.refill is None and self.blocks is None

    @property
    def reason(self) -> str:
        """The answers to divergence in words, for reports."""
        if self.refill is not None and self.refill.measures:
            return "under masks or with lane refill, as trip counts spread"
        how = "under masks" if self.refill is None else "with lane refill"
        if self.blocks is not None:
            how += ", iterations ordered by trip counts where those spread"
            if self.blocks.spans is not None:
                how += ", values of positions apart where spans are neighbours"
        return how


def choose_divergence(
    facts: TaskFacts,
    lanes: LaneFacts,
    shape: Shape,
    accumulation: AccumulationPlan,
    target: Target,
    options: EmitOptions,
) -> Divergence:
    """Returns the choice."""
    refill, blocks = None, None
    if shape.width > 1 and shape.row is None:
        wanted = facts.task.hints.get("refill")
        if wanted or options.may("refill"):
            refill = find_refill(lanes, target, reduces=bool(accumulation.slot.nbytes))
        is_first = refill is not None and (target.has_masks or wanted)
        orders = not is_first and (options.may("ordering") or options.may("spans"))
        ordering = find_ordering(lanes, shape.vectors) if orders else None
        if ordering is not None:
            refill, blocks = None, plan_blocks(facts, accumulation, shape, ordering, target, options)
    return Divergence(refill, None if refill is None else plan_refill(facts, refill, shape), blocks)
