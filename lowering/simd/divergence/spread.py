"""The choice between masks and refill at run time, by the measured variation of trip counts.

Whether idle lanes should take further elements (`refill`) depends on the data: with a body of eight operations it
takes 5 times as long as masks if lanes leave their loop together, and a tenth if one element in a hundred runs a
hundred times as long. So a chunk first runs `PROBE` steps under masks that measure trips of lanes and those for which
they wait (`probe`), estimates both methods from that, and runs the next `BLOCK` steps by the better one; then it
measures again, each time for twice as many steps. The choice depends on counts, not on a clock, so runs are
reproducible; each element takes the same operations in both methods.

The estimate, in cycles, fitted to 10 bodies of 2 to 80 operations with 7 distributions of trip counts (AVX-512):

    masks    iterations * cycles
    refill   iterations with all lanes busy * (8/7 * cycles + STEP) + elements * (ELEMENT + what is around the loop)

with `cycles` of one iteration of a vector from `critical_path`. If refill runs nested loops as one (`flatten`), the
inner loop is counted, and the lanes that enter it: masks also take the cycles of what is around that loop, for each
entry, and in the one loop an entry is an iteration. Tasks that reduce have no such choice: the order of their sums may
not depend on it. Long bodies always refill, as the service between their steps costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import Cell, function
from lowering.simd.critical_path import DIVISION, GATHER, SLOW_GATHER, cycles
from lowering.simd.divergence.ordering import has_neighbours_inside
from lowering.simd.lane_facts import LaneFacts
from lowering.tables import FIELD
from qdtrace.analysis.cost import operations
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.ir.program import Block
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from lowering.llvm.host import I64, Code, NoAlias, Value
    from lowering.llvm.target import Target
    from lowering.llvm.text import Module
    from lowering.simd.divergence.refill import Refill
    from lowering.simd.plan import Plan
    from qdtrace.ir.program import Eqn

PROBE, BLOCK = 4, 60
"""Steps that are counted, unless fewer show a gain of two, and steps that then run by one method."""
STEP, ELEMENT = {True: 7, False: 5}, {True: 6, False: 24}
"""Cycles that refilling costs per step of a vector, and per element, by whether lanes have masks."""
ACCESS = 8
"""The cost of a gather or scatter around the loop, in operations."""
GAIN = (5, 4)
"""The least estimated gain of refill, as a fraction."""
SCALE = 64
"""Estimates are integers in this fraction of a cycle."""


def counted_loop(plan: Plan, refill: Refill) -> Eqn:
    """Returns the loop whose trips decide: the inner one of nested loops that refill runs as one."""
    return plan.nest[1] if plan.nest else refill.loop


def define_driver(plan: Plan, refill: Refill, module: Module, target: Target) -> None:
    """Defines `qd_task` of a task with the functions @qd_probe, @qd_masked and @qd_refilled.

    Lanes out of step are slower: counters that are no longer uniform turn loads into gathers.
    """
    shape = plan.shape
    step, width = shape.width * shape.vectors, shape.width
    other = plan.apart or plan
    gathers = not (target.has_fast_gathers or has_neighbours_inside(LaneFacts(plan.facts, plan.uniformity)))
    # beside the blends of a round without mask registers, half of a division is hidden
    division = DIVISION * target.vector_bits // (512 if target.has_masks else 1024)
    costs = division, SLOW_GATHER if gathers else GATHER
    in_step = cycles(plan.uniformity.varying, counted_loop(plan, refill), shape.vectors, *costs)
    out_of_step = analyse_uniformity(other.facts.task, varying=refill.in_lanes)
    apart = cycles(out_of_step.varying, refill.loop, other.shape.vectors, *costs)
    outer = cycles(plan.uniformity.varying, plan.nest[0], shape.vectors, *costs) - in_step if plan.nest else 0.0
    around = Block((), (*refill.shared, *refill.before, *refill.after), ())
    memory = sum(bool(e.primitive.effects) for e in walk_eqns(around))
    element = ELEMENT[target.has_masks] + (operations(around) + ACCESS * memory) / 4
    each_lane = GAIN[0] * (apart * 8 / 7 + STEP[target.has_masks]) / width
    # costs per trip of a lane, per element, per trip for which a lane is waited for, and per entry of a lane
    weights = (each_lane, GAIN[0] * element, GAIN[1] * in_step / width, GAIN[1] * max(0.0, outer) / width)
    each = [round(SCALE * n) for n in weights]

    def call(c: Code, name: str, *arguments: Value) -> None:
        c.call(f"@{name}", "void", ["ptr", "i64", "i64", "ptr"], arguments)

    @function(f"nounwind {target.vector_attributes}")
    def qd_task(c: Code, refs: NoAlias, lo: I64, hi: I64, slot: NoAlias) -> None:
        c.give_if(lo >= hi)
        measured, at, block = c.memory("[3 x i64]"), Cell(lo), Cell(c.value(step * BLOCK, "i64"))
        with c.loop() as leave:
            first = at.value
            begin, refills = Cell(first), Cell(c.value(0, "i1"))
            steps, *sums = (Cell(c.value(0, "i64")) for _ in range(4))
            with c.loop() as decide:
                low = begin.value
                high = c.smaller(low + step, hi)
                call(c, "qd_probe", refs, low, high, measured)
                begin.value, steps.value = high, steps.value + 1
                for k, total in enumerate(sums):
                    total.value = total.value + measured.load("i32", k * FIELD).to("i64")
                trips, waits, entries = (total.value for total in sums)
                refilled = (trips + entries if plan.nest else trips) * each[0] + (high - first) * each[1]
                masked = waits * each[2] + entries * each[3]
                refills.value = refilled < masked
                decide((refilled * 2 < masked) | (steps.value >= PROBE) | (high >= hi))
            low, better = begin.value, refills.value
            high = c.smaller(low + block.value, hi)
            with c.when(better):
                call(c, "qd_refilled", refs, low, high, slot)
            with c.when(better.equals(0)):
                call(c, "qd_masked", refs, low, high, slot)
            at.value, block.value = high, block.value * 2
            leave(high >= hi)

    qd_task.define(module)
