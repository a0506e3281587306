"""The plan of a task's code in lanes, decided before a line of it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.llvm.privatisation import privatise
from lowering.simd.accumulation.plan import AccumulationPlan, plan_accumulation
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.ordering import Ordering, find_ordering
from lowering.simd.refill import Refill, find_refill
from lowering.simd.shape import Shape, choose_shape
from lowering.simd.span_plan import SpanPlan, plan_spans
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity

if TYPE_CHECKING:
    from lowering.llvm.target import Target
    from qdtrace.ir.program import Task


@dataclass(frozen=True, eq=False)
class Plan:
    """The shape of a task's lanes, its strategies against divergence, and its accumulations."""

    facts: TaskFacts
    shape: Shape
    uniformity: Uniformity
    """Uniformity of lanes that run in step."""
    out_of_step: Uniformity
    """Uniformity of lanes that are refilled one by one, so that values of loops differ between them."""
    refill: Refill | None
    ordering: Ordering | None
    spans: SpanPlan | None
    accumulation: AccumulationPlan

    @property
    def reason(self) -> str:
        """The plan in words, for reports."""
        how = "under masks" if self.refill is None else "with lane refill"
        if self.ordering is not None:
            how += ", iterations ordered by trip counts where those spread"
        if self.spans is not None:
            how += ", values of positions apart where spans are neighbours"
        if self.refill is not None and self.refill.measures:
            how = "under masks or with lane refill, as trip counts spread"
        return self.shape.reason.replace("under masks", how) + self.accumulation.reason


def plan_task(task: Task, target: Target, vectors: int | None = None) -> Plan:
    """Returns the plan of a task; `vectors` is the user's number of vectors side by side."""
    facts = TaskFacts(task)
    lanes = LaneFacts(facts, analyse_uniformity(task))
    limits = target.machine.accumulation
    ways = privatise(facts, limits)
    shape = choose_shape(lanes, target, vectors, sums=bool(ways.registers))
    if shape.row is not None:
        lanes = LaneFacts(facts, analyse_uniformity(task, shape.row.uniform))
    accumulation = plan_accumulation(facts, ways, limits, shape.width)
    refill, ordering = None, None
    if shape.width > 1 and shape.row is None:
        refill = find_refill(lanes, target, reduces=bool(accumulation.slot.nbytes))
        ordering = None if refill is not None else find_ordering(lanes, shape.vectors)
    apart = lanes.uniformity if refill is None else analyse_uniformity(task, varying=refill.in_lanes)
    spans = None if ordering is None else plan_spans(facts, accumulation, shape, ordering, target, vectors)
    return Plan(facts, shape, lanes.uniformity, apart, refill, ordering, spans, accumulation)
