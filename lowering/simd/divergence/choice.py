"""The choice of what to do about lanes whose loops take different numbers of trips."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.divergence.ordering import Ordering, find_ordering
from lowering.simd.divergence.refill import Refill, find_refill
from lowering.simd.divergence.span_plan import SpanPlan, plan_spans
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
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
    """The choice for one task. `refill` excludes the other two, and `spans` needs `ordering`."""

    refill: Refill | None
    ordering: Ordering | None
    spans: SpanPlan | None
    out_of_step: Uniformity
    """Uniformity of lanes that are refilled one by one, so that values of loops differ between them."""

    @property
    def is_masks(self) -> bool:
        """Returns whether lanes run under masks alone, in the order of the task."""
        return self.refill is None and self.ordering is None

    @property
    def reason(self) -> str:
        """The answers to divergence in words, for reports."""
        if self.refill is not None and self.refill.measures:
            return "under masks or with lane refill, as trip counts spread"
        how = "under masks" if self.refill is None else "with lane refill"
        if self.ordering is not None:
            how += ", iterations ordered by trip counts where those spread"
        if self.spans is not None:
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
    refill, ordering = None, None
    if shape.width > 1 and shape.row is None:
        refill = find_refill(lanes, target, reduces=bool(accumulation.slot.nbytes))
        ordering = None if refill is not None else find_ordering(lanes, shape.vectors)
    apart = lanes.uniformity if refill is None else analyse_uniformity(facts.task, varying=refill.in_lanes)
    spans = None if ordering is None else plan_spans(facts, accumulation, shape, ordering, target, options)
    return Divergence(refill, ordering, spans, apart)
