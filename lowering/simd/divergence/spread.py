"""The choice between masks and refill at run time, by the measured variation of trip counts.

Whether idle lanes should take further elements (`refill`) depends on the data: with a body of eight operations it
takes 5 times as long as masks if lanes leave their loop together, and a tenth if one element in a hundred runs a
hundred times as long. So a chunk first runs `PROBE` steps under masks and counts the iterations of the loop and the
lanes active in them, estimates both methods from that, and runs the next `BLOCK` steps by the better one; then it
measures again, each time for twice as many steps. The choice depends on counts, not on a clock, so runs are
reproducible; each element takes the same operations in both methods.

The estimate, in cycles, fitted to 10 bodies of 2 to 80 operations with 7 distributions of trip counts (AVX-512):

    masks    iterations * cycles
    refill   iterations with all lanes busy * (8/7 * cycles + STEP) + elements * (ELEMENT + what is around the loop)

with `cycles` of one iteration of a vector from `critical_path`. Tasks that reduce have no such choice: the order of
their sums may not depend on it. Long bodies always refill, as the service between their steps costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.critical_path import cycles
from qdtrace.analysis.cost import operations
from qdtrace.ir.program import Block
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from lowering.llvm.text import Module
    from lowering.simd.divergence.refill import Refill
    from lowering.simd.plan import Plan

PROBE, BLOCK = 4, 60
"""Steps that are counted, unless fewer show a gain of two, and steps that then run by one method."""
STEP, ELEMENT = 7, 6
"""Cycles that refilling costs per step of a vector, and per element."""
ACCESS = 8
"""The cost of a gather or scatter around the loop, in operations."""
GAIN = (5, 4)
"""The least estimated gain of refill, as a fraction."""
SCALE = 64
"""Estimates are integers in this fraction of a cycle."""


def driver(plan: Plan, refill: Refill, module: Module, attributes: str) -> str:
    """Returns `qd_task` of a task with the functions @qd_probe, @qd_masked and @qd_refilled.

    Lanes out of step are slower: counters that are no longer uniform turn loads into gathers.
    """
    module.declare("llvm.smin.i64", "i64", "i64, i64")
    shape = plan.shape
    step, width = shape.width * shape.vectors, shape.width
    known = (plan.uniformity, plan.divergence.out_of_step)
    in_step, apart = (cycles(k.varying, refill.loop, shape.vectors) for k in known)
    around = Block((), (*refill.before, *refill.after), ())
    memory = sum(bool(e.primitive.effects) for e in walk_eqns(around))
    element = ELEMENT + (operations(around) + ACCESS * memory) / 4
    # costs per lane, per element, and per iteration of a vector
    each = [round(SCALE * n) for n in (GAIN[0] * (apart * 8 / 7 + STEP) / width, GAIN[0] * element, GAIN[1] * in_step)]
    return f"""define void @qd_task(ptr noalias %refs, i64 %lo, i64 %hi, ptr noalias %slot) {attributes} {{
entry:
  %counts = alloca [2 x i64], align 8
  %any = icmp slt i64 %lo, %hi
  br i1 %any, label %probe, label %end
probe:
  %at = phi i64 [ %lo, %entry ], [ %after, %done ]
  %block = phi i64 [ {step * BLOCK}, %entry ], [ %longer, %done ]
  br label %look
look:
  %begin = phi i64 [ %at, %probe ], [ %from, %look ]
  %steps = phi i64 [ 1, %probe ], [ %further, %look ]
  %before = phi i64 [ 0, %probe ], [ %iterations, %look ]
  %busy = phi i64 [ 0, %probe ], [ %lanes, %look ]
  %counted = add i64 %begin, {step}
  %from = call i64 @llvm.smin.i64(i64 %counted, i64 %hi)
  call void @qd_probe(ptr %refs, i64 %begin, i64 %from, ptr %slot, ptr %counts)
  %found = load i64, ptr %counts
  %iterations = add i64 %before, %found
  %second = getelementptr i64, ptr %counts, i64 1
  %active = load i64, ptr %second
  %lanes = add i64 %busy, %active
  %elements = sub i64 %from, %at
  %of_lanes = mul i64 %lanes, {each[0]}
  %of_elements = mul i64 %elements, {each[1]}
  %refilled = add i64 %of_lanes, %of_elements
  %masked = mul i64 %iterations, {each[2]}
  %twice = mul i64 %refilled, 2
  %clear = icmp slt i64 %twice, %masked
  %enough = icmp sge i64 %steps, {PROBE}
  %over = icmp sge i64 %from, %hi
  %known = or i1 %clear, %enough
  %stop = or i1 %known, %over
  %further = add i64 %steps, 1
  br i1 %stop, label %decide, label %look
decide:
  %far = add i64 %from, %block
  %after = call i64 @llvm.smin.i64(i64 %far, i64 %hi)
  %better = icmp slt i64 %refilled, %masked
  br i1 %better, label %refill, label %mask
refill:
  call void @qd_refilled(ptr %refs, i64 %from, i64 %after, ptr %slot)
  br label %done
mask:
  call void @qd_masked(ptr %refs, i64 %from, i64 %after, ptr %slot)
  br label %done
done:
  %longer = mul i64 %block, 2
  %more = icmp slt i64 %after, %hi
  br i1 %more, label %probe, label %end
end:
  ret void
}}
"""
