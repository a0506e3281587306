"""The shape of a step: lanes of a vector, vectors side by side, and whether steps keep to a row."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from lowering.plan.sums import Where
from lowering.simd.critical_path import cycles, vectors_to_fill
from lowering.simd.divergence.one_lane import GATHERED, one_lane_is_faster
from lowering.simd.divergence.refill import find_refill
from lowering.simd.inner.choice import along_one_lane, choose_inner
from lowering.simd.inner.facts import inner_loops
from lowering.simd.lane_facts import LaneFacts, is_quiet
from lowering.simd.rows import find_row
from lowering.simd.strips import in_strips
from qdtrace.analysis.cost import accesses, operations
from qdtrace.analysis.index.trips import trip_count
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import LOAD
from qdtrace.ir.walk import walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.options import EmitOptions
    from lowering.llvm.target import Target
    from lowering.plan.sums import Sums
    from lowering.simd.descriptions import Row
    from lowering.simd.inner.facts import InnerLoop
    from lowering.simd.strips import StripFacts
    from qdtrace.ir.program import Eqn

LIGHT_BODY = 40
"""Bodies without loops up to this cost get several vectors per step."""
LONG_BODY = 500
"""Innermost loop bodies above this cost get one vector per step."""
PRIVATE_BUDGET = 1 << 18
"""Bytes of private memory, without streams, that the lanes of one step may take on the stack."""
STREAMED_BUDGET = 1 << 20
"""The same limit with streams (`LaneFacts.cached_bytes`), which prefetch well."""
PRIVATE_CACHED = 1 << 15
"""The most private memory with several vectors side by side: as much as the nearest cache holds."""
WAITS = 2
"""Loops whose latency would take more vectors than this to hide get three or four."""
HELD = 64
"""The most values of three or four vectors; those that registers do not hold are in the nearest cache."""
WAITING = 32
"""The most lanes of three or four vectors where each waits for the last one and none takes further elements."""
GAIN = 0.9
"""Three or four vectors that wait for each other take at most this fraction of the cycles of two."""
SPILLED_GAIN = 0.7
"""The same for more lanes than `WAITING` whose values registers do not hold."""
ROW_USE = 0.75
"""Steps keep to rows if at least this fraction of the lanes is then busy."""
NARROW_USE = 0.8
"""The same for vectors of fewer lanes: what a step costs beside its operations weighs more."""
ROW_USE_OF_LOOPS = 0.5
"""The same for bodies with loops: each of their trips would gather what steps within a row load side by side."""


@frozen(slots=True)
class Shape:
    """Lanes of a vector, vectors side by side, the rows that a step keeps to, and the reason."""

    width: int
    vectors: int
    row: Row | None
    reason: str
    inner: Mapping[Eqn, InnerLoop] = field(default_factory=dict["Eqn", "InnerLoop"])
    """Loops that run in vectors, if there is one lane."""
    strips: StripFacts | None = None
    """The task with loops in strips, if it has such loops."""


def choose_shape(lanes: LaneFacts, target: Target, options: EmitOptions, sums: Sums | None) -> Shape:
    """Returns the shape of a task's steps; the part of a task has no sums of its own."""
    facts, wanted = lanes.facts, options.vectors
    if facts.task.kind == "serial" or facts.task.index is None:
        return Shape(1, 1, None, "serial task: one thread, scalar")
    if not target.vector_bits:
        return Shape(1, 1, None, "target without vectors: scalar")
    if options.vectorize is False:
        return Shape(1, 1, None, "one lane at a time: by the option `vectorize`")
    width = max(2, target.vector_bits // lanes.element_bits)
    while width > 2 and (lanes.cached_bytes * width > PRIVATE_BUDGET or facts.private_bytes * width > STREAMED_BUDGET):
        width //= 2
    loops = inner_loops(facts, sums, options.fast_math) if sums is not None else {}
    along = along_one_lane(loops.values(), target)
    if trip_count(facts.task.start, facts.task.stop) == 1 and not (options.vectorize or wanted):
        return Shape(1, 1, None, f"one iteration{_lengths(along)}", {loop.eqn: loop for loop in along})
    if _one_lane(lanes, target, options, width, {loop.eqn: cycles for loop, cycles in along.items()}):
        how = f"one lane at a time{_lengths(along)}: vectors would wait in nested loops, branches and gathers"
        return Shape(1, 1, None, how, {loop.eqn: loop for loop in along})
    if sums is not None and not (options.vectorize or wanted):
        inner = choose_inner(lanes, loops, target, width)
        if inner:
            return Shape(1, 1, None, f"one iteration at a time{_lengths(inner.values())}", inner)
    in_registers = sums is not None and bool(sums.of(Where.REGISTERS))

    def side_by_side(lanes: LaneFacts) -> int:
        vectors = wanted or _side_by_side(lanes, target, width, options, sums=in_registers)
        while not wanted and vectors > 1 and _is_crowded(lanes, width * vectors):
            vectors = _fewer(vectors)
        return vectors

    row, whole, vectors = find_row(facts), width, 1
    least = ROW_USE_OF_LOOPS if facts.has_loops else ROW_USE
    if row is not None:
        width = _width_in_rows(row, width, least, facts)
        # what is equal in a row is broadcast in each trip of a loop, and takes a register there
        in_row = lanes if facts.has_loops else LaneFacts(facts, analyse_uniformity(facts.task, row.uniform))
        vectors = side_by_side(in_row)
        while not wanted and vectors > 1 and _row_use(row, width * vectors) < ROW_USE:
            vectors = _fewer(vectors)
        if _row_use(row, width * vectors) < least:
            row, width = None, whole
        else:
            lanes = in_row
    strips = in_strips(lanes, width) if row is None and sums is not None else None
    if row is None:
        vectors = side_by_side(lanes) if strips is None or _waits(lanes, strips) else wanted or 1
    parts = [f"{width} lanes of {lanes.element_bits} bits x {vectors} vectors", f"{lanes.pressure} live values"]
    if lanes.divergent_loops:
        parts.append("divergent loops under masks")
    if row is not None:
        parts.append(f"rows of {row.length}")
    if strips is not None:
        parts.append("loops along records in strips")
    return Shape(width, vectors, row, ", ".join(parts), strips=strips)


def _lengths(loops: Iterable[InnerLoop]) -> str:
    lengths = sorted({f"{loop.width} lanes x {loop.vectors}" for loop in loops})
    return f", vectors along its loops: {', '.join(lengths)}" if lengths else ""


def _one_lane(
    lanes: LaneFacts, target: Target, options: EmitOptions, width: int, along: Mapping[Eqn, float]
) -> bool:
    """Returns whether scalar code is faster, unless the user asks for lanes."""
    if options.vectorize or options.vectors or lanes.facts.task.hints.get("refill"):
        return False
    return one_lane_is_faster(lanes, target, width, along)


def _waits(lanes: LaneFacts, strips: StripFacts) -> bool:
    """Returns whether a loop that is not in strips waits for its critical path, so that vectors side by side pay.

    Strips run alone else, as a square takes half of the registers. Beside a strip, sines in a chain take 1.6 of the
    time with one vector, a running mean 0.7.
    """
    loops = (loop for loop in lanes.facts.innermost_loops if loop not in strips.loops)
    return vectors_to_fill(loops, lanes.uniformity.varying) > WAITS


def _is_crowded(lanes: LaneFacts, count: int) -> bool:
    """Returns whether the memory of so many lanes displaces each other in the nearest cache."""
    return lanes.room < count or lanes.cached_bytes * count > PRIVATE_CACHED


def _fewer(vectors: int) -> int:
    """Returns the next smaller number of vectors: 2 after 4 or 3, then 1."""
    return 2 if vectors > 2 else 1


def _width_in_rows(row: Row, width: int, least: float, facts: TaskFacts) -> int:
    """Returns the lanes of a vector that keeps to rows: fewer, where the others would be idle, or all would gather.

    In place of gathers operations are more, and must cost less. Half of AVX2's vectors: products with 4
    columns 0.8, with 3 columns 0.2, rows of 4 in place 0.4, differences in rows of 10 0.33, three functions in rows of
    10 1.25.
    """
    if _row_use(row, width) >= least:
        while width > 2 and _steps(row, width // 2) == _steps(row, width):
            width //= 2
        return width
    body, least = facts.task.body, max(least, NARROW_USE * (not facts.has_loops))
    pays = (w for w in (width // 2, width // 4) if 2 * w * GATHERED * accesses(body) > operations(body))
    fitting = [w for w in pays if w > 1 and _row_use(row, w) >= least]
    return min(fitting, key=lambda w: (_steps(row, w), w), default=width)


def _row_use(row: Row, step: int) -> float:
    return row.length / (step * _steps(row, step))


def _steps(row: Row, step: int) -> int:
    return -(-row.length // step)


def _side_by_side(lanes: LaneFacts, target: Target, width: int, options: EmitOptions, *, sums: bool) -> int:
    """Returns the number of vectors side by side, which hide the latency of dependent operations.

    Measured: two pay even if their values do not quite fit the registers (LLVM reorders the operations); four pay if
    they fit and no lane waits long for others. Long loop bodies have enough independent operations of their own.
    Gradient of Lorenz with AVX2, 28 values in 16 registers: 0.67 to 0.75 of the time of one vector.

    Convergent loops that wait for their critical path (`critical_path`) gain from three and four even with spilled
    values. Time relative to that of two vectors, by the vectors that would hide the latency: 6.6 and 4.8:
    0.55 (four); 3.4 and 2.4 with 13 values: 0.75 (four); 2.4 with 19 values: 0.85 (three), 0.91 (four); 1.6 and less:
    0.97 to 1.2 (three). With AVX2, 2.4 with 19 values: 0.82 (three), 0.9 (four); with 26 values 1.0 and 1.07.

    Loops that lanes leave at different times gain with AVX2, too: van der Pol (11 values) 0.76 (three), 0.74 (four), a
    branch of two functions (4) 0.8, 0.72, Kepler (6) 0.88, 0.9, its gradient (18) 0.9, 1.0. Quiet ones gain
    from three where lanes are numbers of 32 bits: Mandelbrot (8) 0.90, 1.05; with lanes of 64 bits 1.05, 1.2.
    With AVX-512 64 lanes wait, which pays where they are refilled instead if trip counts spread: sine (2 values) 0.69
    of the time of two with equal trips, 0.94 with geometric ones, Kepler 0.96, a fixed point (3) 0.9. It does not for
    sums, which have no such choice (1.26 with few long trips), loads in the loop (1.38), and spilled values (1.37)
    where the wait is short. An adaptive Runge-Kutta solver (15), whose step waits for a root, a logarithm and
    divisions, takes 0.6, van der Pol (11) 0.55 to 0.95 by its trip counts, 1.17 with one in a hundred that is long.
    """
    facts, pressure = lanes.facts, lanes.pressure
    if not facts.has_loops:
        # a sum in registers is a chain of dependent additions; without one, two only save loop overhead
        return 1 if lanes.varying_cost > LIGHT_BODY else 4 if sums else 2
    if facts.loop_body_cost > LONG_BODY:
        return 1
    if 4 * pressure <= target.registers and all(map(is_quiet, lanes.divergent_loops)):
        return 4
    if vectors_to_fill(facts.innermost_loops, lanes.uniformity.varying) > WAITS:
        for vectors in (4, 3):
            may_wait = not lanes.divergent_loops or _wait_less(lanes, target, width, vectors, options)
            if vectors * pressure <= HELD and may_wait:
                return vectors
    return 2 if pressure <= 2 * target.registers else 1


def _wait_less(lanes: LaneFacts, target: Target, width: int, vectors: int, options: EmitOptions) -> bool:
    """Returns whether so many vectors gain more in loops that lanes leave at different times than lanes lose."""
    are_numbers = vectors == 3 and target.packs_masks and width * 32 == target.vector_bits
    if not are_numbers and any(map(is_quiet, lanes.divergent_loops)):
        return False
    spills = vectors * lanes.pressure > target.registers
    waiting = width * vectors > WAITING
    if waiting and not (options.may("refill") and _may_go_on(lanes, target)):
        return False
    varying, loops = lanes.uniformity.varying, lanes.facts.innermost_loops
    many, two = (sum(cycles(varying, loop, v) for loop in loops) for v in (vectors, 2))
    return many <= (SPILLED_GAIN if waiting and spills else GAIN) * two


def _may_go_on(lanes: LaneFacts, target: Target) -> bool:
    """Returns whether lanes that would wait long take further elements, as trip counts are measured (`refill`)."""
    refill = None if lanes.facts.accums else find_refill(lanes, target, reduces=False)
    if refill is None or not refill.measures:
        return False
    return not any(e.primitive is LOAD for e in walk_inside(refill.loop))
