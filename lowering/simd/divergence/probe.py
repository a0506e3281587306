"""The task that measures the trips of a loop: it runs the iterations as the task does, and sums what it counts.

    s = for j in a : b : 1 carry c = x      s, t = for j in a : b : 1 carry c = x, k = 0
      ...                                     ...
      yield d                                 yield d, k + 1
                                            accum measured t 0                trips of lanes
                                            accum measured (lane_max t) 1     trips for which a lane waits or runs
                                            accum measured 1 2                lanes that enter the loop

Each lane that enters adds the trips of those that it runs beside: for a vector that is its trips times its lanes. Sums
have 32 bits, as those of 64 cost a small task three per cent: more would let a step choose wrong, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.plan.derived_facts import PartFacts
from lowering.plan.sums import Part, Where, lay_out
from lowering.simd.divergence.block_plan import PartPlan
from qdtrace.frozen import frozen
from qdtrace.ir.builder import ref_var
from qdtrace.ir.carries import Carry, carries_of, with_carries
from qdtrace.ir.primitives import ADD
from qdtrace.ir.program import Eqn, Var, literal
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.types import I32, DType

if TYPE_CHECKING:
    from lowering.simd.accumulation.plan import AccumulationPlan
    from lowering.simd.plan import Plan
    from qdtrace.ir.program import Task

PLACES = tuple([literal(k, DType.i32) for k in range(3)])
"""Elements for the trips of lanes, the trips that lanes are waited for, and entries."""
_NONE, _ONE, _ = PLACES


@frozen(eq=False)
class ProbePlan(PartPlan):
    """The plan of a task that measures; its slot has what it measures, and no more."""

    accumulation: AccumulationPlan


def plan_probe(plan: Plan, loop: Eqn) -> ProbePlan:
    """Returns the plan of the task that measures a loop."""
    measured = ref_var(DType.i32, (len(PLACES),), "measured")
    task = probe_task(plan.facts.task, loop, measured)
    slot = lay_out(Part(measured, "add", Where.REGISTERS, (place,), DType.i32) for place in PLACES)
    facts, accumulation = PartFacts(task, plan.facts, {}, (measured,)), plan.accumulation.measuring(slot)
    return ProbePlan(facts, plan.shape, facts.uniformity, accumulation)


def probe_task(task: Task, loop: Eqn, measured: Var) -> Task:
    """Returns the task that also adds what it measures of a loop to three elements of i32."""
    return _Counter(loop, measured).rebuild_task(task)


class _Counter(Rebuilder):
    def __init__(self, loop: Eqn, measured: Var) -> None:
        super().__init__()
        self._loop = loop
        self._measured = measured

    def visit(self, eqn: Eqn) -> None:
        """Appends the loop with a counter, and the sums of it."""
        if eqn is not self._loop:
            super().visit(eqn)
            return
        trips, more, *params = (Var(I32, "trips") for _ in range(2 + len(eqn.blocks)))
        body = eqn.blocks[-1]
        count = Eqn(ADD, (params[-1], _ONE), (more,), {}, (), eqn.loc)
        counting = eqn.rebuilt(blocks=(*eqn.blocks[:-1], body.rebuilt((*body.eqns, count))))
        self.append(with_carries(counting, [*carries_of(counting), Carry(trips, (more,), tuple(params), _NONE)]))
        self.loc = eqn.loc
        for place, value in zip(PLACES, (trips, self("lane_max", trips), _ONE), strict=True):
            self.accum(self._measured, value, place)
