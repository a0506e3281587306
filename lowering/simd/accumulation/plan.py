"""The memory that the sums of a task need in lanes and chunks, and in the copies of threads."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from lowering.llvm.types import BYTES, MEMORY
from lowering.plan.sums import Slot, Where, lay_out, unordered_updates
from lowering.plan.update_groups import MOST_COMPONENTS, group_updates
from lowering.simd.accumulation.outer_products import outer_products
from lowering.tables import CACHE_LINE, round_up
from qdtrace.analysis.cost import executed
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import ref_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from lowering.llvm.facts import TaskFacts
    from lowering.plan.sums import Part, Sums
    from lowering.simd.descriptions import Row
    from qdtrace.analysis.machine import AccumulationLimits
    from qdtrace.ir.program import Var

PIECES = 8
"""Pieces of a loop whose sums do not depend on threads: so many threads may share it."""


@frozen(slots=True)
class AccumulationPlan:
    """The sums of a task, with their memory."""

    sums: Sums
    slot: Slot
    """The sums of a chunk until all chunks have run, in whole cache lines."""
    thread_copies: Slot
    """The arrays that a thread may have copies of, each beginning at a cache line; empty if one cannot be copied."""
    updates: int
    """Estimated accumulations of one iteration into shared arrays."""
    tiled: int = 0
    """The number of arrays that only outer products are accumulated into."""
    panel_bytes: int = 0
    """Bytes of private memory of one lane that factors of outer products need, all together."""
    pieces: int = 0
    """Largest number of pieces into which the loop is cut, each with copies of shared arrays, for any number of
    threads; 1: the loop runs on one thread. 0: as many as there are threads, or none, with locks."""

    def measuring(self, slot: Slot) -> AccumulationPlan:
        """Returns the plan with sums in registers that go to this slot, too."""
        parts = {part.place: part for part in slot.parts}
        return replace(self, sums=replace(self.sums, parts={**self.sums.parts, **parts}), slot=slot)

    @property
    def is_shared(self) -> bool:
        """Returns whether several threads update the same array."""
        return bool(self.sums.atomic or self.sums.of(Where.SHARED))

    @property
    def is_in_slot(self) -> bool:
        """Returns whether a chunk's private sums are all in its slot from the start, none in registers or the stack."""
        return not self.sums.of(Where.REGISTERS) and all(part.lanes == 1 for part in self.slot.parts)

    @property
    def reason(self) -> str:
        """The sums in words, for reports."""
        tiled = f", {self.tiled} sums of outer products by tiles" if self.tiled else ""
        shared = "copies a thread or locks" if self.thread_copies.nbytes else "locks"
        if self.pieces:
            shared = f"copies for each of at most {self.pieces} pieces" if self.pieces > 1 else "updates in order"
        alone = ", in order on one thread" if self.pieces == 1 else ""
        return self.sums.reason("chunk", shared) + tiled + alone


def plan_accumulation(
    facts: TaskFacts, sums: Sums, limits: AccumulationLimits, width: int, row: Row | None = None, *,
    in_order: bool = False,
) -> AccumulationPlan:  # fmt: skip
    """Returns the plan for vectors of `width` lanes; with `in_order` no sum of floats depends on threads.

    Steps keep to a `row`, if there is one.
    """
    shared = sums.of(Where.SHARED)
    refs = {*sums.atomic, *(part.ref for part in shared)}
    count = executed(facts.task.body, lambda e: int(e.primitive is ACCUM and reference(e) in refs)) if refs else 0
    copied = () if sums.atomic else shared
    unordered = unordered_updates(facts, sums, Where.SHARED, Where.ATOMIC) if in_order else []
    pieces = 0 if not unordered else PIECES if copied and all(e.primitive is ACCUM for e in unordered) else 1
    updates = max(1, count) if refs or pieces else 0
    products = list(outer_products(facts.task.body.eqns)) if width > 1 and sums.of(Where.COPY) else []
    updates_of = {update for product in products for update in product.updates}
    tiled = {part.ref for part in sums.of(Where.COPY) if updates_of.issuperset(facts.effects[part.ref])}
    panels = sum((product.places + 2 * width) * BYTES[MEMORY[product.ref.dtype]] for product in products)
    along = {part.ref for part in sums.of(Where.COPY) if _is_along_row(facts, part.ref, row)}
    slot = _slot(facts, sums, limits, width, tiled | along | set(_records(facts, sums)))
    return AccumulationPlan(sums, slot, lay_out(copied, CACHE_LINE), updates, len(tiled), panels, pieces)


def _is_along_row(facts: TaskFacts, ref: Var, row: Row | None) -> bool:
    """Returns whether lanes accumulate into neighbouring elements of an array, or all into one element of their row.

    Copies for lanes of an element a row would be cleared and added more often than they are used.
    """
    own = facts.task.index
    if own is None:
        return False
    forms = [facts.forms.address(ref_type(ref), indices_of(eqn)).terms for eqn in facts.effects[ref]]
    in_rows = all(t is own or (row is not None and row.keeps(t)) for terms in forms for t in terms)
    return in_rows and all(terms and terms.get(own, 0) in (0, 1) for terms in forms)


def _records(facts: TaskFacts, sums: Sums) -> Iterator[Var]:
    """Yields the arrays of whose elements several components are updated together, lane after lane.

    Copies for lanes would take the components apart: 20,000 edges that move points of 500 take twice as long.
    """
    for block in (facts.task.body, *(b for eqn in facts.task.all_eqns for b in eqn.blocks)):
        for group in chain.from_iterable(group_updates(sums, block.eqns, (Where.COPY,))):
            if len(group.values) > 1:
                yield group.ref


def _slot(facts: TaskFacts, sums: Sums, limits: AccumulationLimits, width: int, alone: Collection[Var]) -> Slot:
    """Returns the slot: sums of registers, then copies, each with spare elements for inactive lanes.

    Those `alone` have no copies for lanes: their lanes meet elements in rows, outer products are accumulated alone, or
    components are updated together.
    """
    if facts.task.kind == "serial":
        return Slot()
    parts: list[Part] = sums.of(Where.REGISTERS)
    room = limits.lane_bytes
    for part in sums.of(Where.COPY):
        lanes = 1 if part.ref in alone else width
        while lanes > 1 and (part.nbytes * lanes > room or facts.work < limits.copy_work * part.size * lanes):
            lanes //= 2
        room -= part.nbytes * lanes if lanes > 1 else 0
        parts.append(replace(part, lanes=lanes))
    slot = lay_out(parts, spare=max(width, MOST_COMPONENTS))
    return Slot(slot.parts, round_up(slot.nbytes, CACHE_LINE))
