"""The plan of tasks that run in parts if the spans of their iterations are neighbours, and of each part in lanes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.plan.sums import Where
from lowering.simd.divergence.ordering import repeatable
from lowering.simd.divergence.span_parts import cut_spans
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.shape import LONG_BODY, Shape, choose_shape
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.faults import checks_of

if TYPE_CHECKING:
    from lowering.llvm.options import EmitOptions
    from lowering.llvm.target import Target
    from lowering.simd.accumulation.plan import AccumulationPlan
    from lowering.simd.divergence.ordering import Ordering
    from lowering.simd.divergence.span_parts import SpanParts
    from qdtrace.ir.program import Eqn, Task, Var


@mutable(eq=False)
class PartFacts(TaskFacts):
    """Facts about a part of a task: it takes the references of the whole, then those that the parts share."""

    whole: TaskFacts
    parts: SpanParts

    @cached_property
    def refs(self) -> tuple[Var, ...]:
        """The references of the whole task and of the parts."""
        return (*self.whole.refs, *self.parts.kept)

    @cached_property
    def written(self) -> frozenset[Var]:
        """The references that some part writes."""
        return self.whole.written | frozenset(self.parts.kept)

    @property
    def ref_count(self) -> int:
        """The number of references in the table of the whole task."""
        return self.whole.ref_count

    @cached_property
    def check_numbers(self) -> dict[Eqn, int]:
        """The numbers of the checks in the whole task."""
        return {e: self.whole.check_numbers[self.parts.origins.get(e, e)] for e in checks_of(self.task)}


@frozen(eq=False)
class PartPlan:
    """The plan of a part in lanes."""

    facts: PartFacts
    shape: Shape
    uniformity: Uniformity


@frozen(eq=False)
class SpanPlan:
    """The plan of a task that runs in parts."""

    parts: SpanParts
    ordering: Ordering
    """Ordering of the rows by the lengths of their spans."""
    before: PartPlan | None
    rows: PartPlan
    after: PartPlan | None

    @property
    def functions(self) -> dict[str, PartPlan]:
        """The parts by the names of their functions."""
        parts = {"qd_before": self.before, "qd_rows": self.rows, "qd_after": self.after}
        return {name: plan for name, plan in parts.items() if plan is not None}


def plan_spans(
    facts: TaskFacts,
    accumulation: AccumulationPlan,
    shape: Shape,
    ordering: Ordering,
    target: Target,
    options: EmitOptions,
) -> SpanPlan | None:
    """Returns the parts of a task with ordered iterations, or None if it walks over no spans or gains nothing."""
    if not accumulation.is_in_slot or facts.loop_body_cost > LONG_BODY:
        return None
    late = {part.ref for part in accumulation.sums.of(Where.COPY, Where.SHARED)}
    parts = cut_spans(facts.task, facts.written, late)
    look = None if parts is None else repeatable(facts.task.body.eqns, (parts.first, parts.last), facts.written)
    if parts is None or look is None:
        return None

    def part(task: Task) -> PartPlan:
        own = PartFacts(task, facts, parts)
        lanes = LaneFacts(own, analyse_uniformity(task))
        if task is parts.rows:
            return PartPlan(own, shape, lanes.uniformity)
        found = choose_shape(lanes, target, options, None)
        # copies in slots have room for inactive lanes of the whole
        found = replace(found, width=min(found.width, shape.width))
        uniform = lanes.uniformity if found.row is None else analyse_uniformity(task, found.row.uniform)
        return PartPlan(own, found, uniform)

    before, after = (None if task is None else part(task) for task in (parts.before, parts.after))
    by_length = replace(ordering, before=look, first=parts.first, last=parts.last)
    return SpanPlan(parts, by_length, before, part(parts.rows), after)
