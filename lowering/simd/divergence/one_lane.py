"""The choice to run one lane at a time, in scalar code.

A vector under masks pays for both sides of each branch, for the longest of the lanes' inner loops, and for each gather
and scatter an element at a time. Scalar code pays for what its own iteration does, and for branches that the processor
predicts wrong. The estimate compares the two for tasks whose divergent loops are nested or store into private arrays
at indices of the lane (stacks of tree walks); lanes have always been faster in the others.

Its numbers were fitted to walks over trees, sums over neighbours of neighbours, and their gradients, on four kinds of
vectors (docs/design/0048). It chooses right for all of them, though single ratios are off by up to a factor of two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.simd.critical_path import PORTS
from lowering.simd.divergence.refill import find_refill
from qdtrace.analysis.cost import GUESS
from qdtrace.analysis.index.trips import trip_count
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import CELL, FOR, LOAD
from qdtrace.ir.program import is_local
from qdtrace.ir.walk import is_rare, walk_inside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.target import Target
    from lowering.simd.lane_facts import LaneFacts
    from qdtrace.ir.program import Block, Eqn

GATHERED, LOADED, SCATTERED = 1.25, 4.0, 4.0
"""Operations for each element that the processor gathers, that is loaded lane by lane, and that is stored apart."""
STALL, LONG_STALL = 4, 6
"""Factor on these for private memory, where a load waits for the stores before it, with and without scatters."""
BUSY = 0.9
"""Fraction of lanes active in a divergent loop. Fractions of nested loops multiply."""
INNER_GUESS = 8
"""Trip count that is assumed for inner loops of unknown length."""
REFILLED, BLENDED = 0.65, 0.9
"""Time of lanes that are refilled, relative to masks, with registers for masks and without.

Measured for walks over trees: 0.64 and 0.67 with AVX-512; 1.02 and 1.03 with AVX2, whose accesses are made for idle
lanes, too.
"""
SCALAR_PORTS = 4
"""Operations that scalar code begins in one cycle."""
TAKEN = 0.7
"""Fraction of the longer side of a branch that scalar code executes on average."""
BRANCH, LOOP_END = 14, 10
"""Cycles that mispredictions cost scalar code for each divergent branch, and for each end of a divergent loop."""


def one_lane_is_faster(lanes: LaneFacts, target: Target, width: int, along: Mapping[Eqn, float]) -> bool:
    """Returns whether scalar code is estimated to run an iteration in less time than a lane of `width` takes.

    `along` has the loops that scalar code runs in vectors, with their cycles.
    """
    inside = [e for loop in lanes.divergent_loops for e in walk_inside(loop)]
    if not any(e in lanes.divergent_loops or e in along or _pushes(lanes, e) for e in inside):
        return False
    gathered, stall = GATHERED if target.has_gathers else LOADED, STALL if target.has_masks else LONG_STALL
    found = _Estimate(lanes, width, gathered, stall, along).block(lanes.facts.task.body, 1.0, GUESS)
    refill = find_refill(lanes, target, reduces=True)
    refilled = 1.0 if refill is None else REFILLED if target.has_masks else BLENDED
    return found.lane * refilled > found.scalar


def _pushes(lanes: LaneFacts, eqn: Eqn) -> bool:
    """Returns whether an equation stores into private memory at an index of the lane."""
    prim = eqn.primitive
    return prim.is_access and prim is not LOAD and is_local(eqn.invars[0]) and _scattered(lanes, eqn)


def _scattered(lanes: LaneFacts, access: Eqn) -> bool:
    return not lanes.uniformity.varying.isdisjoint(indices_of(access))


@frozen(slots=True)
class _Cycles:
    """Cycles of an iteration as a lane of a vector under masks, and in scalar code."""

    lane: float = 0.0
    scalar: float = 0.0


@frozen(eq=False)
class _Estimate:
    lanes: LaneFacts
    width: int
    gathered: float
    stall: int
    along: Mapping[Eqn, float]

    def block(self, block: Block, busy: float, guess: int) -> _Cycles:
        """Returns the cycles of a block, executed with the fraction `busy` of the lanes active."""
        found = [self._eqn(eqn, busy, guess) for eqn in block.eqns]
        return _Cycles(sum(c.lane for c in found), sum(c.scalar for c in found))

    def _eqn(self, eqn: Eqn, busy: float, guess: int) -> _Cycles:
        prim = eqn.primitive
        if prim is CELL or is_rare(eqn):
            return _Cycles()
        if prim.loops:
            return self._loop(eqn, busy, guess)
        if eqn.blocks:
            sides = [self.block(block, busy, guess) for block in eqn.blocks]
            missed = BRANCH if eqn in self.lanes.uniformity.divergent else 0
            merged = len(eqn.outvars) / self._rate(busy)
            return _Cycles(sum(c.lane for c in sides) + merged, TAKEN * max(c.scalar for c in sides) + missed)
        if prim.is_access:
            return _Cycles(self._access(eqn) / self._rate(busy), 1 / SCALAR_PORTS)
        shared = self.lanes.uniformity.varying.isdisjoint(eqn.outvars)
        return _Cycles(0 if shared else prim.cost / self._rate(busy), prim.cost / SCALAR_PORTS)

    def _loop(self, eqn: Eqn, busy: float, guess: int) -> _Cycles:
        divergent = eqn in self.lanes.uniformity.divergent
        known = trip_count(*eqn.bounds) if eqn.primitive is FOR else None
        trips = guess if known is None else known
        busy = busy * BUSY if divergent else busy
        parts = [self.block(block, busy, INNER_GUESS) for block in eqn.blocks]
        selects = len(eqn.outvars) / self._rate(busy)
        scalar = trips * (sum(c.scalar for c in parts) + 1 / SCALAR_PORTS) + (LOOP_END if divergent else 0)
        return _Cycles(trips * (sum(c.lane for c in parts) + selects), self.along.get(eqn, scalar))

    def _rate(self, busy: float) -> float:
        """Returns the operations of lanes that begin in one cycle."""
        return PORTS * self.width * busy

    def _access(self, eqn: Eqn) -> float:
        """Returns the operations of an access of a vector."""
        if not _scattered(self.lanes, eqn):
            return 1
        each = self.gathered if eqn.primitive is LOAD else SCATTERED
        return each * self.width * (self.stall if is_local(eqn.invars[0]) else 1)
