"""What equations do to memory: which references they read and write.

`summarise` looks at every equation of a block once and gives the sets of each structured equation inside, so that
a pass that asks at every level stays linear in the size of the task times its depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import WRITES, Effect
from qdtrace.ir.program import Block, Eqn, Task, Var
from qdtrace.ir.walk import blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterable

@dataclass(frozen=True, slots=True)
class Access:
    """References that some equations read and write (an accumulation or atomic is a write)."""

    reads: frozenset[Var]
    writes: frozenset[Var]

    @property
    def is_pure(self) -> bool:
        """Nothing is read, nothing is written."""
        return not self.reads and not self.writes


PURE = Access(frozenset(), frozenset())


def has_effect(eqn: Eqn) -> bool:
    """True when the equation, or one inside its blocks, writes memory."""
    if not WRITES.isdisjoint(eqn.primitive.effects):
        return True
    return any(has_effect(inner) for block in eqn.blocks for inner in block.eqns)


def is_pure(eqn: Eqn) -> bool:
    """True when the equation is a function of its operands alone (a structured one: with all its blocks)."""
    if eqn.primitive.effects:
        return False
    return all(is_pure(inner) for block in eqn.blocks for inner in block.eqns)


def access_of(eqns: Iterable[Eqn], found: dict[Eqn, Access] | None = None) -> Access:
    """What the equations read and write; `found` is filled with the access of each structured equation."""
    reads: set[Var] = set()
    writes: set[Var] = set()
    for eqn in eqns:
        effects = eqn.primitive.effects
        if eqn.blocks:
            inner_reads: set[Var] = set()
            inner_writes: set[Var] = set()
            for block in eqn.blocks:
                access = access_of(block.eqns, found)
                inner_reads |= access.reads
                inner_writes |= access.writes
            if found is not None:
                found[eqn] = Access(frozenset(inner_reads), frozenset(inner_writes))
            reads |= inner_reads
            writes |= inner_writes
        elif effects:
            ref = eqn.invars[0] if eqn.invars else None
            if isinstance(ref, Var):
                if Effect.READ in effects:
                    reads.add(ref)
                if not WRITES.isdisjoint(effects):
                    writes.add(ref)
    return Access(frozenset(reads), frozenset(writes)) if reads or writes else PURE


def summarise(block: Block) -> tuple[Access, dict[Eqn, Access]]:
    """The access of the block and of each structured equation inside it."""
    found: dict[Eqn, Access] = {}
    return access_of(block.eqns, found), found


def task_access(task: Task) -> Access:
    """What a task reads and writes, head and body."""
    return access_of(eqn for block in blocks_of(task) for eqn in block.eqns)
