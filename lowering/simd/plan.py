"""The plan of a task's code in lanes, decided before a line of it is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.facts import TaskFacts
from lowering.llvm.options import DEFAULTS, EmitOptions
from lowering.plan.sums import Slot, find_sums
from lowering.simd.accumulation.plan import AccumulationPlan, plan_accumulation
from lowering.simd.divergence.choice import Divergence, choose_divergence
from lowering.simd.divergence.flatten import STEPS, flattened, flattened_steps
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.shape import Shape, choose_shape
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from lowering.llvm.target import Target
    from qdtrace.ir.program import Eqn, Task


@frozen(eq=False)
class Plan:
    """The shape of a task's lanes, its strategies against divergence, and its accumulations."""

    facts: TaskFacts
    shape: Shape
    uniformity: Uniformity
    """Uniformity of lanes that run in step."""
    divergence: Divergence
    accumulation: AccumulationPlan
    apart: Plan | None = None
    """The plan by which the task runs instead if trip counts spread, with time steps and a loop in them as one loop."""
    nest: tuple[Eqn, ...] = ()
    """The time steps and the loop in them."""

    @property
    def reason(self) -> str:
        """The plan in words, for reports."""
        how = self.divergence.reason + (STEPS if self.apart else self.facts.reason)
        return self.shape.reason.replace("under masks", how) + self.accumulation.reason


def plan_task(task: Task, target: Target, options: EmitOptions = DEFAULTS) -> Plan:
    """Returns the plan of a task, with its nested loops as one if lanes then are refilled."""
    lanes, flattens = LaneFacts.in_step(TaskFacts(task)), options.may("flattening")
    flat = flattened(lanes, target) if flattens and options.vectorize is not False else None
    if flat is not None:
        plan = _plan(LaneFacts.in_step(flat), target, options)
        if plan.divergence.refill is not None:
            return plan
    plan = _plan(lanes, target, options)
    found = flattened_steps(lanes) if flattens and plan.shape.width > 1 and plan.divergence.is_masks else None
    if found is None:
        return plan
    apart = _plan(LaneFacts.in_step(found[0]), target, options)
    return plan if apart.divergence.refill is None else replace(plan, apart=apart, nest=found[1:])


def _plan(lanes: LaneFacts, target: Target, options: EmitOptions) -> Plan:
    facts = lanes.facts
    limits = target.machine.accumulation
    limits = limits if options.knows_lengths else replace(limits, chunk_bytes=0)  # copies of a chunk have a length, too
    sums = find_sums(facts, limits)
    shape = choose_shape(lanes, target, options, sums)
    if shape.strips is not None:
        facts = shape.strips
        lanes, sums = LaneFacts.in_step(facts), find_sums(facts, limits)
    if shape.row is not None:
        lanes = LaneFacts(facts, analyse_uniformity(facts.task, shape.row.uniform))
    accumulation = plan_accumulation(facts, sums, limits, shape.width, shape.row, in_order=options.deterministic)
    accumulation = accumulation if options.knows_lengths else replace(accumulation, thread_copies=Slot())
    divergence = choose_divergence(facts, lanes, shape, accumulation, target, options)
    return Plan(facts, shape, lanes.uniformity, divergence, accumulation)
