"""What is known of a task whose iterations run in lanes: which values differ between them, and how many there are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from qdtrace.analysis.cost import operations
from qdtrace.ir.memory import MEMORY, indices_of
from qdtrace.ir.primitives import FUNCTIONS
from qdtrace.ir.program import Block, Eqn, Var, is_local, ref_type
from qdtrace.ir.types import DType, ScalarType
from qdtrace.ir.walk import free_vars, is_rare, walk_nested, walk_often

if TYPE_CHECKING:
    from lowering.llvm.facts import TaskFacts
    from qdtrace.analysis.uniformity import Uniformity

QUIET_COST = 32
"""A pure `while` of at most this cost is quiet."""
_LOUD = ("load", "store", "accum", "atomic", "cell", "for", "while", "bound", "check")


@dataclass(frozen=True, eq=False)
class LaneFacts:
    """Facts of a task in lanes."""

    facts: TaskFacts
    uniformity: Uniformity

    @cached_property
    def divergent_loops(self) -> tuple[Eqn, ...]:
        """Loops that lanes leave at different times, but for those that hardly ever run."""
        loops = {e for e in walk_often(self.facts.task.body) if e.primitive.loops}
        return tuple(e for e in self.uniformity.divergent if e in loops)

    @cached_property
    def element_bits(self) -> int:
        """Bits of the widest float among the varying values (of the widest integer where there is no float)."""
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
        """Bytes of private memory that an iteration comes back to at any time.

        The stack of a reverse loop is stored in one loop and loaded in another, at places that all lanes agree on: it
        streams, and what it takes of the nearest cache does not matter.
        """
        accesses: dict[Var, list[tuple[Eqn, Eqn | None]]] = {}
        for eqn, around in walk_nested(self.facts.task.body):
            if eqn.primitive.name in MEMORY and is_local(eqn.invars[0]):
                innermost = next((e for e in reversed(around) if e.primitive.loops), None)
                accesses.setdefault(eqn.invars[0], []).append((eqn, innermost))  # type: ignore[arg-type]
        streams = [ref_type(ref).nbytes for ref, found in accesses.items() if self._streams(found)]
        return self.facts.private_bytes - sum(streams)

    def _streams(self, accesses: list[tuple[Eqn, Eqn | None]]) -> bool:
        """Stores in some loops, loads in others, at indices that all lanes agree on."""
        stores = {loop for eqn, loop in accesses if eqn.primitive.name == "store"}
        loads = {loop for eqn, loop in accesses if eqn.primitive.name == "load"}
        if None in stores | loads or not stores.isdisjoint(loads):
            return False
        return self.uniformity.varying.isdisjoint(a for e, _ in accesses for a in indices_of(e))

    @cached_property
    def pressure(self) -> int:
        """Most varying values alive at once in the innermost loops (or in the body when it has none), in elements."""
        return _peak(self.facts.task.body, self.uniformity.varying, set())


def _peak(block: Block, varying: frozenset[Var], after: set[Var]) -> int:
    """Peak number of live varying values; `after` is alive at the end. Loops count, what is around them does not:
    there a few spills cost little."""
    live = (after | {a for a in block.results if isinstance(a, Var)}) & varying
    peak, inner = len(live), 0
    for eqn in reversed(block.eqns):
        live.difference_update(eqn.outvars)
        for part in eqn.blocks:
            if is_rare(eqn):  # what nobody else needs may be in memory
                break
            free = free_vars(part).keys() & varying
            if not eqn.primitive.loops:
                peak = max(peak, _peak(part, varying, live))
            else:
                inner = max(inner, _peak(part, varying, live | free))
            live |= free
        live |= {a for a in eqn.invars if a in varying}
        peak = max(peak, len(live))
    return inner or peak


def is_quiet(eqn: Eqn) -> bool:
    """Light, and nothing in it touches memory or loops: lanes that have left may run on for a few steps."""
    if eqn.primitive.name != "while":
        return False
    names = {e.primitive.name for block in eqn.blocks for e in walk_often(block)}
    if not names.isdisjoint(_LOUD) or not names.isdisjoint(FUNCTIONS):
        return False
    return sum(map(operations, eqn.blocks)) <= QUIET_COST
