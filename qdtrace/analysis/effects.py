"""Mod/ref analysis: the references that equations read and write.

`summarise` looks at every equation of a block once and returns the sets of each structured equation inside,
so that a pass that asks at every level stays linear in the size of the task times its depth.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qdtrace.ir.primitives import WRITES, Effect
from qdtrace.ir.program import Block, Eqn, Program, Task, Var, ref_type
from qdtrace.ir.walk import blocks_of, walk_program

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

@dataclass(frozen=True, slots=True)
class ModRef:
    """References that some equations read and write (an accumulation or atomic is a write)."""

    reads: frozenset[Var]
    writes: frozenset[Var]


PURE = ModRef(frozenset(), frozenset())


def mod_ref_of(eqns: Iterable[Eqn], found: dict[Eqn, ModRef] | None = None) -> ModRef:
    """Returns the references that equations read and write; puts those of each structured equation in `found`."""
    reads: set[Var] = set()
    writes: set[Var] = set()
    for eqn in eqns:
        effects = eqn.primitive.effects
        if eqn.blocks:
            inner_reads: set[Var] = set()
            inner_writes: set[Var] = set()
            for block in eqn.blocks:
                access = mod_ref_of(block.eqns, found)
                inner_reads |= access.reads
                inner_writes |= access.writes
            if found is not None:
                found[eqn] = ModRef(frozenset(inner_reads), frozenset(inner_writes))
            reads |= inner_reads
            writes |= inner_writes
        elif effects:
            ref = eqn.invars[0] if eqn.invars else None
            if isinstance(ref, Var):
                if Effect.READ in effects:
                    reads.add(ref)
                if not WRITES.isdisjoint(effects):
                    writes.add(ref)
    return ModRef(frozenset(reads), frozenset(writes)) if reads or writes else PURE


def summarise(block: Block) -> tuple[ModRef, dict[Eqn, ModRef]]:
    """Returns the references that a block reads and writes, and those of each structured equation inside."""
    found: dict[Eqn, ModRef] = {}
    return mod_ref_of(block.eqns, found), found


def task_mod_ref(task: Task) -> ModRef:
    """Returns the references that head and body of a task read and write."""
    return mod_ref_of(eqn for block in blocks_of(task) for eqn in block.eqns)


def written_refs(program: Program) -> set[Var]:
    """References that some task of the program changes; private ones too."""
    return {
        eqn.invars[0]
        for eqn in walk_program(program)
        if not WRITES.isdisjoint(eqn.primitive.effects) and isinstance(eqn.invars[0], Var)
    }


def must_run(program: Program, written: Container[Var]) -> bool:
    """Returns whether a program must run for its checks even if no result is used: it writes no result that has
    elements, or returns a buffer that it does not write (`compose/segment.with_token`)."""
    given = [v for v in program.results if v in written]
    buffers = set(program.buffers)
    return not any(ref_type(v).size for v in given) or any(v in buffers and v not in given for v in program.results)
