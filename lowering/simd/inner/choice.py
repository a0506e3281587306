"""The choice of vectors along the inner loops of a task, in place of lanes that are iterations of it.

Lanes of a task over the rows of a matrix gather: each walks through a row of its own, and rows are far apart. Along a
row, elements are neighbours. The estimate counts the operations of an iteration in both forms.

A loop around others may be the one: sums of columns have a column in each lane, and walk down the lines together.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.simd.critical_path import LATENCY, PORTS, cycles
from lowering.simd.divergence.one_lane import GATHERED, LOADED, SCALAR_PORTS, SCATTERED
from lowering.simd.lane_facts import LaneFacts
from lowering.simd.strips import SHORTEST, strips_of, walks_records
from qdtrace.analysis.cost import GUESS, operations
from qdtrace.analysis.index.trips import trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import ADD, CELL, FOR, LOAD
from qdtrace.ir.program import Var, is_local, ref_type
from qdtrace.ir.types import DType
from qdtrace.ir.walk import is_innermost, is_rare, used_vars, walk_inside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from lowering.llvm.facts import TaskFacts
    from lowering.llvm.target import Target
    from lowering.simd.inner.facts import InnerLoop
    from qdtrace.ir.program import Block, Eqn

LIGHT_BODY = 40
"""Bodies of loops up to this cost get four vectors, others two: sums of the former wait for each other."""
ENDS = 12
"""Cycles of a loop besides its steps: the rest of the trips under a mask, and the sum of all lanes. These of one row
overlap with the steps of the next one: a row alone takes 40."""
ENDS_ALONE = 8
"""The same of a loop that carries nothing, or truths: their lanes are one number, which is compared."""
UNCHANGED = 5
"""Operations of a step of a running product or extreme that rarely changes, and is then a test (`prefixes`)."""
SCAN = 3
"""Operations for each doubling of the lanes that a running sum combines, and operations that a vector waits for."""
ALONE = 12
"""Cycles of a trip of a running sum in strips of one vector, which waits for the trip before."""
RECORD = 4
"""The longest distance of elements in vectors that are loaded side by side and then taken apart."""
TURNED = 3
"""Operations for each doubling of the lanes where pieces of records are turned, or lanes are summed: a shuffle, which
one port runs, and a share of the loads and stores of private memory around it."""
FAR = 1 << 15
"""Bytes of private memory of all lanes from which on an access of it takes twice as long."""


def choose_inner(
    lanes: LaneFacts, loops: Mapping[Eqn, InnerLoop], target: Target, width: int
) -> Mapping[Eqn, InnerLoop]:
    """Returns those of the inner loops along which a task runs in vectors, none where lanes of `width` iterations are
    faster."""
    if lanes.divergent_loops or not loops:
        return {}
    found = {e: _in_vectors(loop, target) for e, loop in loops.items()}
    estimate = _one_of_each_nest(_Estimate(lanes, width, found, target, strips_of(lanes, width)))
    return estimate.loops if is_faster(estimate) else {}


def along_one_lane(loops: Iterable[InnerLoop], target: Target) -> dict[InnerLoop, float]:
    """Returns those of the inner loops that run in vectors where a task runs one lane at a time, with the cycles of
    each."""
    found: dict[InnerLoop, float] = {}
    for loop in loops:
        if not is_innermost(loop.eqn):  # scalar code has its vectors in the loops inside
            continue
        taken = _in_vectors(loop, target)
        cycles_along = _steps(taken) * _operations_of_step(taken, target) / PORTS
        if cycles_along < loop.trips * operations(loop.eqn.blocks[0]) / SCALAR_PORTS:
            found[taken] = cycles_along
    return found


def is_faster(estimate: _Estimate) -> bool:
    """Returns whether vectors along loops are estimated to take less time than lanes."""
    cost = estimate.block(estimate.lanes.facts.task.body)
    return cost.inner < cost.lane


def _one_of_each_nest(estimate: _Estimate) -> _Estimate:
    """Returns the estimate with loops of which none is in another one."""
    loops = estimate.loops
    found: dict[Eqn, InnerLoop] = {}
    covered: set[Eqn] = set()
    for eqn, loop in loops.items():  # those around others come first
        if eqn in covered:
            continue
        if not is_innermost(eqn):
            inside = {e: loops[e] for e in walk_inside(eqn) if e in loops}
            within = _one_of_each_nest(replace(estimate, loops=inside))
            if _gathers(loop, estimate.target) or not runs_around(loop, within):
                continue
            covered.update(inside)
        found[eqn] = loop
    return replace(estimate, loops=found)


def runs_around(loop: InnerLoop, within: _Estimate) -> bool:
    """Returns whether vectors along a loop around others are estimated to take less time than those `within` it."""
    return within.along(loop).inner < within.loop(loop.eqn).inner


def _gathers(loop: InnerLoop, target: Target) -> bool:
    """Returns whether an access in a loop is neither side by side nor at one place in neighbouring trips.

    A loop around others has none: columns of lines, 20 x 32 and 40 x 24, took 3.5 times as long by gathers.
    """
    varying, index = loop.uniformity.varying, loop.facts.task.index
    accesses = (e for e in walk_inside(loop.eqn) if e.primitive.is_access)
    return any(_operations(loop.facts, e, index, varying, target, loop.width) > 1 for e in accesses)


def _in_vectors(loop: InnerLoop, target: Target) -> InnerLoop:
    """Returns a loop with its lanes and vectors."""
    width = max(2, target.vector_bits // LaneFacts(loop.facts, loop.uniformity).element_bits)
    while width // 2 >= loop.trips and width > 2:
        width //= 2
    bodies = [e.blocks[0] for e in (loop.eqn, *walk_inside(loop.eqn)) if is_innermost(e)]
    vectors = 4 if max(map(operations, bodies)) <= LIGHT_BODY else 2
    while vectors > 1 and width * vectors > loop.trips:
        vectors //= 2
    return replace(loop, width=width, vectors=vectors)


@frozen(slots=True)
class _Cycles:
    """Cycles of an iteration as a lane, and alone with vectors along its inner loops."""

    lane: float = 0.0
    inner: float = 0.0

    def __add__(self, other: _Cycles) -> _Cycles:
        return _Cycles(self.lane + other.lane, self.inner + other.inner)


@frozen(eq=False)
class _Estimate:
    lanes: LaneFacts
    width: int
    loops: Mapping[Eqn, InnerLoop]
    target: Target
    strips: Mapping[Eqn, int]
    """The loops that lanes run in strips, with their trip counts."""

    def block(self, block: Block, loop: Eqn | None = None) -> _Cycles:
        """Returns the cycles of a block, of a `loop` if it is innermost."""
        strip = loop if loop in self.strips else None
        beside = Counter[object]((reference(e), e.primitive) for e in block.eqns if e.primitive.is_access)
        return sum((self._eqn(eqn, strip, beside) for eqn in block.eqns), _Cycles())

    def _turned(self, access: Eqn, strip: Eqn | None, beside: int) -> float:
        """Returns the fraction of an access that is in pieces of records, of a strip or of so many accesses."""
        index, trips = (None, beside) if strip is None else (strip.index, self.strips[strip])
        if trips < SHORTEST or not walks_records(self.lanes, access, index, self.width):
            return 0
        return 1 - trips % SHORTEST / trips

    def _eqn(self, eqn: Eqn, strip: Eqn | None, beside: Mapping[object, int]) -> _Cycles:
        prim, varying = eqn.primitive, self.lanes.uniformity.varying
        if prim is CELL or is_rare(eqn):
            return _Cycles()
        if eqn in self.loops:
            return self.along(self.loops[eqn])
        if prim.loops:
            return self.loop(eqn)
        if eqn.blocks:
            return sum(map(self.block, eqn.blocks), _Cycles())
        if prim.is_access:
            each = _operations(self.lanes.facts, eqn, self.lanes.facts.task.index, varying, self.target, self.width)
            turned = self._turned(eqn, strip, beside[reference(eqn), prim])
            each += turned * (TURNED * (self.width.bit_length() - 1) - each)
            far = 2 if is_local(eqn.invars[0]) and self.lanes.facts.private_bytes * self.width >= FAR else 1
            return _Cycles(far * each / (PORTS * self.width), 1 / SCALAR_PORTS)
        shared = varying.isdisjoint(eqn.outvars)
        return _Cycles(0 if shared else prim.cost / (PORTS * self.width), prim.cost / SCALAR_PORTS)

    def loop(self, eqn: Eqn) -> _Cycles:
        """Returns the cycles of a loop that is scalar beside vectors: each trip waits for the one before it."""
        known = trip_count(*eqn.bounds) if eqn.primitive is FOR else None
        trips = GUESS if known is None else known
        each = sum((self.block(block, eqn) for block in eqn.blocks), _Cycles())
        alone = cycles(self.lanes.uniformity.varying, eqn, 1) if is_innermost(eqn) else each.inner
        return _Cycles(trips * each.lane, trips * alone)

    def along(self, loop: InnerLoop) -> _Cycles:
        """Returns the cycles of a loop in lanes, and in vectors along it."""
        lane = self.block(loop.eqn.blocks[0], loop.eqn).lane
        if loop.scans and loop.eqn in self.strips:  # which run in one vector (`simd/shape`)
            lane += ALONE / self.width
        each, steps = _operations_of_step(loop, self.target), _steps(loop)
        wait = sum(SCAN * LATENCY for eqn in loop.scans if eqn.primitive is ADD)
        wait += sum(LATENCY * _runs(e) for e in loop.eqn.blocks[0].eqns if e.blocks) / loop.vectors
        sums = sum(v.dtype is not DType.bool for v in loop.eqn.outvars)
        ends = ENDS + (sums - 1) * TURNED * loop.width.bit_length() / PORTS if sums else ENDS_ALONE
        return _Cycles(loop.trips * lane, steps * max(each / PORTS, wait) + ends)


def _steps(loop: InnerLoop) -> int:
    return -(-loop.trips // (loop.width * loop.vectors)) * loop.vectors


def _operations_of_step(loop: InnerLoop, target: Target) -> float:
    """Returns the operations of a vector of a loop's trips."""
    return _operations_in(loop, loop.eqn.blocks[0], target)


def _operations_in(loop: InnerLoop, body: Block, target: Target) -> float:
    """Returns the operations of a vector of a loop's trips in one execution of a block of them."""
    varying, each, used = loop.uniformity.varying, 0.0, set(body.results)
    index = loop.facts.task.index
    beside = Counter((reference(e), e.primitive) for e in body.eqns if e.primitive.is_access)
    for eqn in reversed(body.eqns):
        if eqn.blocks:
            used.update(used_vars(eqn))
            each += (trip_count(*eqn.bounds) or 0) * (1 + _operations_in(loop, eqn.blocks[0], target))
        elif eqn.primitive.is_access:
            components = beside[reference(eqn), eqn.primitive]
            taken = _operations(loop.facts, eqn, index, varying, target, loop.width, components)
            used.update(values_of(eqn) if taken == 1 else eqn.invars)
            each += taken
        elif eqn.primitive.effects or not used.isdisjoint(eqn.outvars):  # else it cancels in an address
            used.update(eqn.invars)
            if eqn in loop.scans and eqn.primitive is not ADD:
                each += UNCHANGED
            elif not varying.isdisjoint(eqn.outvars):
                each += eqn.primitive.cost * (SCAN * loop.width.bit_length() if eqn in loop.scans else 1)
    return each


def _runs(loop: Eqn) -> int:
    """Returns how often a loop inside of a trip, or one in it, waits for what it carried."""
    inner = sum(_runs(e) for e in loop.blocks[0].eqns if e.blocks)
    return (trip_count(*loop.bounds) or 0) * max(inner, len(loop.outvars) > 0)


def _operations(
    facts: TaskFacts, eqn: Eqn, index: Var | None, varying: frozenset[Var], target: Target, width: int,
    components: int = 1,
) -> float:  # fmt: skip
    """Returns the operations of an access of a vector of lanes, which are neighbours along `index`.

    So many `components` of records are accessed beside each other.
    """
    indices, ref = indices_of(eqn), reference(eqn)
    if varying.isdisjoint(indices):
        return 1
    terms = facts.forms.address(ref_type(ref), indices).terms
    others = [t for t in terms if t is not index]
    if index is not None and all(isinstance(t, Var) and t not in varying for t in others):
        stride = abs(terms.get(index, 0))
        if stride == 1:
            return 1
        if 2 <= stride <= RECORD and (eqn.primitive is LOAD or components >= stride):
            return 2 * stride
    loaded = GATHERED if target.has_gathers else LOADED
    return width * (loaded if eqn.primitive is LOAD else SCATTERED)
