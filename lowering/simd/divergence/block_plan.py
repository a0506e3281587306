"""The plan of tasks that run in blocks of iterations (`in_blocks`), and of each of their parts in lanes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from lowering.plan.derived_facts import PartFacts
from lowering.plan.span_parts import cut_spans
from lowering.plan.sums import Where
from lowering.simd.divergence.in_blocks import block_memory, look_task, rows_task
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.shape import LONG_BODY, Shape, choose_shape
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.program import Eqn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.options import EmitOptions
    from lowering.llvm.target import Target
    from lowering.plan.span_parts import SpanParts
    from lowering.simd.accumulation.plan import AccumulationPlan
    from lowering.simd.divergence.ordering import Ordering
    from qdtrace.ir.program import Task, Var


@mutable(eq=False)
class OnceFacts(PartFacts):
    """Facts about a part that runs each iteration of the whole task once, in another order."""

    @cached_property
    def exclusive_accums(self) -> frozenset[Var]:
        """The references of the whole task."""
        return self.whole.exclusive_accums


@mutable(eq=False)
class OrderedFacts(OnceFacts):
    """Facts about a part that runs iterations in the order of their trip counts."""

    ordered: ClassVar[bool] = True


@frozen(eq=False)
class PartPlan:
    """The plan of a part in lanes."""

    facts: PartFacts
    shape: Shape
    uniformity: Uniformity


@frozen(eq=False)
class BlockPlan:
    """The plan of a task that runs in blocks of iterations ordered by their trip counts."""

    rows: PartPlan
    """The iterations as the task is written."""
    functions: Mapping[str, PartPlan]
    """The parts that are functions of their own, by name, in the order of their calls."""
    spans: SpanParts | None
    """The parts of blocks whose spans are consecutive."""
    gain: int
    """Cycles that one iteration takes, as in `Ordering.gain`."""


def plan_blocks(
    facts: TaskFacts,
    accumulation: AccumulationPlan,
    shape: Shape,
    ordering: Ordering,
    target: Target,
    options: EmitOptions,
) -> BlockPlan:
    """Returns the plan of a task with ordered iterations, in parts where it walks over spans and that gains."""
    task, gain = facts.task, ordering.gain
    spans = _spans(facts, accumulation) if options.may("spans") else None
    look = None if spans is None else facts.repeatable(task.body.eqns, (spans.first, spans.last))
    if spans is None or look is None:
        spans = None
    else:
        ordering = replace(ordering, before=look, first=spans.first, last=spans.last)
    memory = block_memory(task, ordering)
    tasks = {"qd_look": look_task(task, ordering, memory)}
    if spans is not None:
        parts = {"qd_before": spans.before, "qd_rows": rows_task(spans.rows, memory), "qd_after": spans.after}
        tasks |= {name: part for name, part in parts.items() if part is not None}

    def plan(part: Task, *, ordered: bool) -> PartPlan:
        shared, origins = (*memory, *(spans.kept if spans else ())), spans.origins if spans else dict[Eqn, Eqn]()
        if ordered:
            own = OrderedFacts(part, facts, origins, shared)
            return PartPlan(own, shape, own.uniformity)
        own = PartFacts(part, facts, origins, shared)
        found = choose_shape(LaneFacts.in_step(own), target, options, None)
        # copies in slots have room for inactive lanes of the whole
        found = replace(found, width=min(found.width, shape.width))
        return PartPlan(own, found, analyse_uniformity(part, found.row.uniform) if found.row else own.uniformity)

    functions = {name: plan(part, ordered=name == "qd_rows") for name, part in tasks.items()}
    return BlockPlan(plan(rows_task(task, memory), ordered=True), functions, spans, gain)


def _spans(facts: TaskFacts, accumulation: AccumulationPlan) -> SpanParts | None:
    """Returns the parts of a task that walks over spans, or None if it does not or gains nothing."""
    if not accumulation.is_in_slot or facts.loop_body_cost > LONG_BODY:
        return None
    late = {part.ref for part in accumulation.sums.of(Where.COPY, Where.SHARED)}
    return cut_spans(facts.task, facts.written, late)
