"""Groups of updates of an array that are made together, planned for a block before its text is written.

Components of one element, `f[a, 0]` and `f[a, 1]`, that are accumulated one after another form a group, which ends at
control flow. A group is emitted before the first equation that cannot join it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from lowering.llvm.types import BYTES, MEMORY
from lowering.plan.sums import Where
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM
from qdtrace.ir.program import Literal, is_global, literal, ref_type

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from lowering.plan.sums import Sums
    from qdtrace.ir.program import Atom, Eqn, Var

BASE_ALIGNMENT = 16
"""Bytes of alignment that every array has: XLA and the runtime align to more."""
MOST_COMPONENTS = 8
_LEAST_BYTES = 4
"""The fewest bytes of a component that joins a group."""


@frozen(slots=True)
class UpdateGroup:
    """Accumulations into neighbouring components, in order."""

    ref: Var
    op: str
    indices: tuple[Atom, ...]
    """Indices of the first component."""
    values: tuple[Atom, ...]
    last: Eqn
    """The accumulation into the last component."""

    @staticmethod
    def of(eqn: Eqn) -> UpdateGroup:
        """Returns a group of one accumulation."""
        return UpdateGroup(reference(eqn), eqn.params["op"], indices_of(eqn), (eqn.invars[1],), eqn)

    def alone(self) -> Iterator[UpdateGroup]:
        """Yields a group for each component."""
        *row, first = self.indices
        for k, value in enumerate(self.values):
            index = literal(int(first.value) + k, first.dtype) if k and isinstance(first, Literal) else first
            yield replace(self, indices=(*row, index), values=(value,))

    @property
    def component(self) -> int | None:
        """The last index of the first component, or None if it is not constant."""
        last = self.indices[-1] if self.indices else None
        return int(last.value) if isinstance(last, Literal) else None

    @property
    def alignment(self) -> int:
        """The alignment in bytes of the first component. An array of one row counts as one of several: code for any
        length has one choice of it for both."""
        size, shape = BYTES[MEMORY[self.ref.dtype]], ref_type(self.ref).shape
        found = math.gcd(BASE_ALIGNMENT, (self.component or 0) * size)
        return math.gcd(found, shape[-1] * size) if len(shape) > 1 else found

    def aligned(self, widest: int) -> Iterator[tuple[int, int]]:
        """Yields the first one and the number of components that are aligned together, of at most `widest` bytes."""
        size, many, k = BYTES[MEMORY[self.ref.dtype]], len(self.values), 0
        while k < many:
            count = max(1, min(math.gcd(self.alignment, k * size or BASE_ALIGNMENT), widest) // size)
            while count > 1 and k + count > many:
                count //= 2
            yield k, count
            k += count

    def takes(self, other: UpdateGroup) -> bool:
        """Returns whether `other` is the next component of the same element."""
        if other.op != self.op or len(self.values) == MOST_COMPONENTS or other.indices[:-1] != self.indices[:-1]:
            return False
        return self.component is not None and other.component == self.component + len(self.values)


def group_updates(
    sums: Sums, eqns: Iterable[Eqn], wanted: Collection[Where] = (Where.SHARED,)
) -> list[tuple[UpdateGroup, ...]]:
    """Returns the groups of sums that are kept in wanted ways: those emitted before each equation, and at the end."""
    steps: list[tuple[UpdateGroup, ...]] = []
    open_: dict[Var, UpdateGroup] = {}
    for eqn in eqns:
        if eqn.primitive.structured:
            steps.append(tuple(open_.values()))
            open_.clear()
        elif _is_grouped(sums, eqn, wanted):
            steps.append(_add(open_, UpdateGroup.of(eqn)))
        else:
            steps.append(())
    return [*steps, tuple(open_.values())]


def _is_grouped(sums: Sums, eqn: Eqn, wanted: Collection[Where]) -> bool:
    """Returns whether an equation accumulates into an array that the task accesses in no other way."""
    return eqn.primitive is ACCUM and is_global(eqn.invars[0]) and sums.where(eqn) in wanted


def _add(open_: dict[Var, UpdateGroup], one: UpdateGroup) -> tuple[UpdateGroup, ...]:
    before = open_.get(one.ref)
    if before is not None and before.takes(one):
        open_[one.ref] = replace(before, values=(*before.values, *one.values), last=one.last)
        return ()
    open_.pop(one.ref, None)
    made = () if before is None else (before,)
    if one.component is None or BYTES[MEMORY[one.ref.dtype]] < _LEAST_BYTES:
        return (*made, one)
    open_[one.ref] = one
    return made
