"""Facts about a task whose iterations run in lanes: divergence, element width and register pressure."""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING

from qdtrace.analysis.cost import operations, peak_live
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import LANE_COUNT, LOAD, STORE, Effect
from qdtrace.ir.program import Eqn, Var, is_global, is_local, ref_type
from qdtrace.ir.types import DType, ScalarType
from qdtrace.ir.walk import walk_inside, walk_nested, walk_often

if TYPE_CHECKING:
    from lowering.llvm.facts import TaskFacts
    from qdtrace.analysis.uniformity import Uniformity
    from qdtrace.ir.primitives import Primitive

SETS, WAYS, LINE = 4096, 8, 64
"""Bytes of all sets of the nearest cache, the lines that a set holds, and the bytes of a line."""
QUIET_COST = 32
"""The largest cost of a quiet loop."""


@frozen(eq=False)
class LaneFacts:
    """Facts about a task in lanes."""

    facts: TaskFacts
    uniformity: Uniformity

    @classmethod
    def in_step(cls, facts: TaskFacts) -> LaneFacts:
        """Returns the facts in lanes that run in step."""
        return cls(facts, facts.uniformity)

    @cached_property
    def divergent_loops(self) -> tuple[Eqn, ...]:
        """The loops that lanes leave at different times, except those that rarely run."""
        loops = {e for e in walk_often(self.facts.task.body) if e.primitive.loops}
        return tuple(e for e in self.uniformity.divergent if e in loops)

    @cached_property
    def varying_cost(self) -> int:
        """The cost of a body without loops, without what is computed once for all lanes."""
        uniform = self.uniformity.is_uniform
        shared = (e for e in walk_often(self.facts.task.body) if e.outvars and all(map(uniform, e.outvars)))
        return self.facts.cost - sum(e.primitive.cost for e in shared)

    @cached_property
    def element_bits(self) -> int:
        """The bits of the widest varying float, or of the widest varying integer if there is no float."""
        floats, integers = 0, 0
        for eqn in walk_often(self.facts.task.body):
            for var in eqn.outvars:
                if var in self.uniformity.varying and isinstance(var.type, ScalarType):
                    d = var.dtype
                    if d.is_float:
                        floats = max(floats, d.bits)
                    elif d is not DType.bool and var not in self.facts.forms.forms:
                        integers = max(integers, d.bits)
        return max(32, floats or integers)

    @cached_property
    def cached_bytes(self) -> int:
        """The bytes of private memory that an iteration may reuse at any time.

        The stack of a reverse loop is stored in one loop and loaded in another, at uniform indices: it streams, so it
        need not fit into the nearest cache.
        """
        accesses: dict[Var, list[tuple[Eqn, Eqn | None]]] = {}
        for eqn, around in walk_nested(self.facts.task.body):
            if eqn.primitive.is_access and is_local(eqn.invars[0]):
                innermost = next((e for e in reversed(around) if e.primitive.loops), None)
                accesses.setdefault(eqn.invars[0], []).append((eqn, innermost))  # type: ignore[arg-type]
        streams = [ref_type(ref).nbytes for ref, found in accesses.items() if self._streams(found)]
        return self.facts.private_bytes - sum(streams)

    @cached_property
    def room(self) -> int:
        """The most lanes that may walk through rows side by side: more have too many lines in one set of a cache."""
        facts, index, room = self.facts, self.facts.task.index, 1 << 16
        for eqn in (e for loop in facts.innermost_loops for e in walk_inside(loop) if e.primitive.is_access):
            if index is not None and is_global(eqn.invars[0]):
                kind = ref_type(eqn.invars[0])
                stride = facts.forms.address(kind, indices_of(eqn)).terms.get(index, 0)
                apart = gcd(stride * kind.dtype.bits // 8, SETS)
                if stride and apart >= LINE:
                    room = min(room, WAYS * (SETS // apart))
        return room

    def _streams(self, accesses: list[tuple[Eqn, Eqn | None]]) -> bool:
        """Returns whether stores are in some loops and loads in others, all at uniform indices."""
        stores = {loop for eqn, loop in accesses if eqn.primitive is STORE}
        loads = {loop for eqn, loop in accesses if eqn.primitive is LOAD}
        if None in stores | loads or not stores.isdisjoint(loads):
            return False
        return self.uniformity.varying.isdisjoint(a for e, _ in accesses for a in indices_of(e))

    @cached_property
    def pressure(self) -> int:
        """The most varying values live at once in the innermost loops, or in the body if it has no loops."""
        return peak_live(self.facts.task.body, self.uniformity.varying)


def is_quiet(eqn: Eqn) -> bool:
    """Returns whether a loop is light, without memory or inner loops, so that lanes may run on after they left."""
    if any(_is_loud(e.primitive) for block in eqn.blocks for e in walk_often(block)):
        return False
    return sum(map(operations, eqn.blocks)) <= QUIET_COST


def _is_loud(prim: Primitive) -> bool:
    return prim.loops or prim.is_function or prim is LANE_COUNT or bool(prim.effects - {Effect.LANES})
