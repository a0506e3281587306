"""Strips: loops that walk through a long record of each lane take as many trips at a time as a vector has lanes.

Lanes side by side walk through records of their own, so each trip gathers an element of each lane, or scatters it. In a
strip of trips a piece of each record is loaded by one vector a lane and turned (`pieces`), and stored likewise:

Before:  for k in 0:i32 : 40:i32 : 1:i32           After:  for s in 0:i32 : 2:i32 : 1:i32
           v: f32 = load x i k                               t: i32 = mul s 16:i32
           store a v k                                       v: f32 = load x i t
                                                             store a v t
                                                             t_1: i32 = add t 1:i32
                                                             v_1: f32 = load x i t_1
                                                             ...
                                                           v_32: f32 = load x i 32:i32
                                                           ...

Trips stay in order. Strips begin at the smallest index, so the rest of the trips of a loop downwards comes first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.plan.derived_facts import DerivedFacts
from lowering.simd.accumulation.outer_products import outer_product
from qdtrace.analysis.cost import code_size
from qdtrace.analysis.index.trips import loop_values
from qdtrace.frozen import mutable
from qdtrace.ir.faults import may_fail
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import CELL, FOR, LOAD, STORE
from qdtrace.ir.program import Block, Eqn, Var, is_global, literal, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_inside, walk_often

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.simd.lane_facts import LaneFacts
    from qdtrace.ir.program import Atom

SHORTEST = 4
"""Elements of the shortest pieces of long records."""
LONGEST = 800
"""The most operations of a strip and the rest of a loop together."""
ALL = 4000
"""The most operations of a task with strips."""


@mutable(eq=False)
class StripFacts(DerivedFacts):
    """Facts about a task whose loops take a strip of trips at a time."""

    loops: frozenset[Eqn]
    """The loops of the whole task that do."""


def is_long_record(stride: int, width: int) -> bool:
    """Returns whether records so far apart are moved by pieces, and not by whole vectors."""
    return stride > max(4, width // 2 + 1)


def in_strips(lanes: LaneFacts, width: int) -> StripFacts | None:
    """Returns facts about a task whose loops along records of lanes are in strips, or None if it has no such loop."""
    task, loops = lanes.facts.task, strips_of(lanes, width)
    if not loops:
        return None
    made = _Stripper(loops, width)
    return StripFacts(replace(task, body=made.rebuild_block(task.body)), lanes.facts, made.origins, frozenset(loops))


def strips_of(lanes: LaneFacts, width: int) -> Mapping[Eqn, int]:
    """Returns the loops of a task that run in strips, those along records of lanes, with their trip counts.

    Code stays short, and sums of outer products loops that are found again.
    """
    found: dict[Eqn, int] = {}
    if lanes.divergent_loops:  # lanes that wait for each other have vectors side by side, and code of each
        return found
    room = ALL - code_size(lanes.facts.task.body)
    summed = {e for outer in lanes.facts.task.body.eqns if outer_product(outer) for e in walk_inside(outer)}
    for loop in walk_often(lanes.facts.task.body):
        values = loop_values(*loop.bounds) if loop.primitive is FOR and loop not in summed else None
        if values is None or abs(values.step) != 1 or values.count < SHORTEST or not _walks(lanes, loop, width):
            continue
        size = _size(lanes, loop.blocks[0]) * _copies(values.count, width)
        if size <= min(LONGEST, room):
            found[loop] = values.count
            room -= size
    return found


def _size(lanes: LaneFacts, body: Block) -> int:
    """Returns the operations of a trip that are not computed once for all lanes."""
    shared = lanes.uniformity.is_uniform
    return sum(e.primitive.cost for e in body.eqns if not e.outvars or not all(map(shared, e.outvars)))


def _copies(trips: int, width: int) -> int:
    return trips if trips < 2 * width else width + trips % width


def _walks(lanes: LaneFacts, loop: Eqn, width: int) -> bool:
    """Returns whether a loop accesses each lane's record element by element, and its trips may be copied.

    Where a user asked for a number of trips at a time, it stays. `False`, as of sweeps of derivatives, only keeps what
    a loop stores from becoming scalars.
    """
    (body,) = loop.blocks
    if loop.params.get("unroll") not in (None, False) or may_fail(body.eqns):
        return False
    if any(e.blocks or e.primitive is CELL for e in body.eqns):
        return False
    return any(walks_records(lanes, e, loop.index, width) for e in body.eqns if e.primitive in (LOAD, STORE))


def walks_records(lanes: LaneFacts, access: Eqn, index: Var | None, width: int) -> bool:
    """Returns whether lanes access elements of long records, those of neighbouring trips beside each other.

    Without an index of trips, all lanes access the same element of their records.
    """
    ref, facts = reference(access), lanes.facts
    if not is_global(ref) or (access.primitive is LOAD and ref in facts.written) or facts.task.index is None:
        return False
    terms = dict(facts.forms.address(ref_type(ref), indices_of(access)).terms)
    stride = abs(terms.pop(facts.task.index, 0))
    if not is_long_record(stride, width) or (index is not None and abs(terms.pop(index, 0)) != 1):
        return False
    return all(isinstance(t, Var) and lanes.uniformity.is_uniform(t) for t in terms)


class _Stripper(Rebuilder):
    def __init__(self, loops: Mapping[Eqn, int], width: int) -> None:
        super().__init__()
        self.loops = loops
        self.width = width
        self.origins: dict[Eqn, Eqn] = {}
        """The equations that others became, as they read what a loop in strips makes."""

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or a loop in strips."""
        made = self.rebuild_eqn(eqn)
        self.origins[made] = eqn
        if eqn in self.loops:
            self.env.update(zip(eqn.outvars, self._strips(made), strict=True))
        else:
            self.append(made)

    def _strips(self, loop: Eqn) -> tuple[Atom, ...]:
        values, carries = loop_values(*loop.bounds), loop.initials
        assert values is not None
        count = values.count // self.width if values.count >= 2 * self.width else 0
        rest = values.count - count * self.width
        if values.step < 0:
            carries = self._trips(loop, values.start, values.step, rest, carries)
        if count:
            start = values.start - (rest if values.step < 0 else 0)
            carries = self._loop(loop, start, values.step, count, carries)
        if values.step > 0:
            carries = self._trips(loop, values.start + count * self.width, values.step, rest, carries)
        return carries

    def _loop(self, loop: Eqn, start: int, step: int, count: int, carries: tuple[Atom, ...]) -> tuple[Atom, ...]:
        """Appends a loop over strips, and returns what it carries."""
        (body,) = loop.blocks
        index, dtype = Var(loop.index.type, loop.index.hint), loop.index.dtype
        params = [Var(p.type, p.hint) for p in body.params[1:]]
        with self.block([index, *params]) as block:
            lowest = start if step > 0 else start - self.width + 1
            at = self("mul", index, literal(step * self.width, dtype))
            results: tuple[Atom, ...] = tuple(params)
            for k in range(self.width):
                first = lowest + (k if step > 0 else self.width - 1 - k)
                number = self("add", at, literal(first, dtype)) if first else at
                results = self.copy_block(body, (number, *results))
        outvars = tuple(Var(v.type, v.hint) for v in loop.outvars)
        bounds = literal(0, dtype), literal(count, dtype), literal(1, dtype)
        self.append(Eqn(FOR, (*bounds, *carries), outvars, loop.params, (block.close(results),), loop.loc))
        return outvars

    def _trips(self, loop: Eqn, start: int, step: int, count: int, carries: tuple[Atom, ...]) -> tuple[Atom, ...]:
        for k in range(count):
            carries = self.copy_block(loop.blocks[0], (literal(start + k * step, loop.index.dtype), *carries))
        return carries
