"""Iterations ordered by their trip counts, so that the lanes of a step leave their loops together.

If the trip count of a task's first loop is known before the loop (a row of a sparse matrix), the task computes it for a
block of iterations, sorts them by it (a counting sort), and then runs them in that order: lanes hold iterations that
are not neighbours. With geometric trip counts, 16 lanes in the original order are busy 30 % of the time, and nine
tenths of it when ordered. Unlike refill this serves tasks of several loops, as reverse mode makes them: each has the
same count.

A block is ordered only if the idle lanes that this avoids cost more than sorting. Trip counts affect the order of
execution only, so they need not be exact. They depend on data alone, and chunks of tasks that reduce do not depend on
the number of threads, so sums have the same bits in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.host import MEMSET, Cell, External, function
from lowering.simd.critical_path import cycles
from qdtrace.analysis.index.induction import raised_by
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carried_params
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import FOR, GE, GT, LE, LT, NE
from qdtrace.ir.program import Literal, Var, is_local, ref_type
from qdtrace.ir.walk import walk_inside

if TYPE_CHECKING:
    from lowering.llvm.host import I64, Code, NoAlias
    from lowering.llvm.text import Module
    from lowering.simd.lane_facts import LaneFacts
    from qdtrace.ir.program import Atom, Eqn

ELEMENT = 12
"""Cycles to compute the trip count of an iteration and sort it."""
SCALE = 64
"""Estimates are integers in this fraction of a cycle."""
BUCKETS = 448
"""Buckets of the sort: one per number below 32, then 16 per power of two."""
_LARGER = External("i32 llvm.smax.i32(i32, i32)")
_ZEROS = External("i32 llvm.ctlz.i32(i32, i1)")


@frozen(eq=False)
class Ordering:
    """The trip counts by which the iterations of a task are ordered."""

    before: tuple[Eqn, ...]
    """Equations that compute `first` and `last`."""
    first: Atom
    last: Atom
    """The trip count is approximately `last - first`."""
    gain: int
    """Cycles of one iteration of all loops, for a vector, in units of 1 / `SCALE`."""


def find_ordering(lanes: LaneFacts, vectors: int) -> Ordering | None:
    """Returns the ordering of a task's iterations, or None if no trip count is known before the loop, or if lanes
    should stay neighbours."""
    task = lanes.facts.task
    if task.kind != "range_for" or not lanes.divergent_loops or has_neighbours_inside(lanes):
        return None
    at = next((k for k, e in enumerate(task.body.eqns) if e in lanes.divergent_loops), None)
    found = None if at is None else _trips(task.body.eqns[at])
    if at is None or found is None or lanes.uniformity.varying.isdisjoint(found):
        return None
    before = lanes.facts.repeatable(task.body.eqns[:at], found)
    if before is None:
        return None
    loops = [e for e in task.body.eqns if e.primitive.loops]
    each = sum(cycles(lanes.uniformity.varying, loop, vectors) for loop in loops)
    return Ordering(before, *found, round(SCALE * each))


def _trips(loop: Eqn) -> tuple[Atom, Atom] | None:
    """Returns two values from before the loop whose difference is about its trip count, or None."""
    if loop.primitive is FOR:
        start, stop, step = loop.bounds
        if not isinstance(step, Literal) or abs(int(step.value)) != 1:
            return None
        return (start, stop) if int(step.value) == 1 else (stop, start)
    test, body = loop.blocks
    initial = dict(zip(carried_params(loop, test), loop.invars, strict=True))
    by = raised_by(loop)
    params = zip(carried_params(loop, test), carried_params(loop, body), strict=True)
    counters = {p for p, q in params if q in by and by[q].value == 1}
    bound = {v for e in test.eqns for v in e.outvars} | set(test.params)
    for eqn in test.eqns:
        if eqn.primitive in (LT, LE, GT, GE, NE):
            for counter, limit in (eqn.invars, eqn.invars[::-1]):
                if counter in counters and limit not in bound and limit.dtype.is_integer:
                    return initial[counter], limit
    return None


def has_neighbours_inside(lanes: LaneFacts) -> bool:
    """Returns whether lanes access neighbouring elements inside a loop, which reordered they would gather."""
    index, varying = lanes.facts.task.index, lanes.uniformity.varying
    for loop in lanes.facts.task.body.eqns:
        for eqn in walk_inside(loop) if loop.primitive.loops else ():
            if not eqn.primitive.is_access or is_local(eqn.invars[0]):
                continue
            terms = lanes.facts.forms.address(ref_type(eqn.invars[0]), indices_of(eqn)).terms
            if index in terms and not any(t is not index and (not isinstance(t, Var) or t in varying) for t in terms):
                return True
    return False


def define_order_numbers(module: Module, gain: int, step: int, width: int) -> None:
    """Defines `order_numbers(numbers, count, order)`, which stores the positions of the numbers, sorted if that pays.

    It counts the idle lanes of the original order to decide.
    """

    @function("nounwind")
    def order_numbers(c: Code, numbers: NoAlias, count: I64, order: NoAlias) -> None:
        buckets = c.memory(f"[{BUCKETS + 1} x i32]", 64)
        begin, longest, total = (Cell(c.value(0, "i64")) for _ in range(3))
        with c.loop() as leave:
            low, most = begin.value, Cell(c.value(0, "i32"))
            high = c.smaller(low + step, count)
            with c.each(low, high, None) as k:
                place = numbers.item("i32", k)
                number = _LARGER(c, place.load("i32"), 0)
                place.store(number, "i32")
                most.value = _LARGER(c, most.value, number)
                total.value = total.value + number.to("i64")
            longest.value = longest.value + most.value.to("i64")
            begin.value = high
            leave(high >= count)
        idle = longest.value * step - total.value
        with c.when(idle * gain <= count * (ELEMENT * SCALE * width)):
            with c.each(0, count, None) as k:
                order.item("i32", k).store(k.to("i32", "trunc"), "i32")
            c.give()
        MEMSET(c, buckets, 0, 4 * (BUCKETS + 1), 0)
        with c.each(0, count, None) as k:
            place = numbers.item("i32", k)
            number = place.load("i32")
            shift = _LARGER(c, c.value(27, "i32") - _ZEROS(c, number, 0), 0)
            bucket = (number >> shift) + (shift << 4)
            place.store(bucket, "i32")
            held = buckets.item("i32", bucket + 1)
            held.store(held.load("i32") + 1, "i32")
        before = Cell(c.value(0, "i32"))
        with c.each(0, BUCKETS, None) as k:
            place = buckets.item("i32", k)
            before.value = before.value + place.load("i32")
            place.store(before.value, "i32")
        with c.each(0, count, None) as k:
            place = buckets.item("i32", numbers.item("i32", k).load("i32"))
            position = place.load("i32")
            place.store(position + 1, "i32")
            order.item("i32", position).store(k.to("i32", "trunc"), "i32")

    order_numbers.define(module)
