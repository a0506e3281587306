"""The number of neighbouring iterations that a thread takes.

A light body ends before the next block can be started, and loads too few bytes at a time. Four floats per thread are
one wide load, and a quarter of the blocks: 2.5 times faster on a chain of elementwise operations over 2^26 floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import MODULAR
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import LOAD, Effect
from qdtrace.ir.program import Literal, is_global, ref_type
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from lowering.llvm.facts import TaskFacts
    from qdtrace.analysis.index.affine import Form
    from qdtrace.ir.program import Eqn

WIDE = 16
"""Bytes of the widest load."""
MOST = 8
"""The most iterations of one thread's group."""
LIGHT = 48
"""The most operations of a body that counts as light."""
FEW = 3
"""The largest stride, in elements, of accesses that leave few holes between neighbouring iterations."""
WAVES = 2
"""Times that the threads must fill the device before each takes several iterations."""


def group_size(facts: TaskFacts, iterations: int | None, threads_at_once: int) -> int:
    """Returns how many neighbouring iterations make a thread's accesses wide; 1 if nothing is gained."""
    if facts.cost > LIGHT or not _is_straight(facts):
        return 1
    sizes = [reference(e).dtype.itemsize for eqns in facts.effects.values() for e in eqns if _is_dense(facts, e)]
    if not sizes:
        return 1
    size = min(MOST, WIDE // max(sizes))
    while size > 1 and iterations is not None and iterations < WAVES * threads_at_once * size:
        size //= 2
    return max(1, size)


def _is_straight(facts: TaskFacts) -> bool:
    """Returns whether no loop or branch separates the accesses of neighbouring iterations."""
    return not any(e.primitive.structured for e in walk_eqns(facts.task.body))


def early_loads(facts: TaskFacts) -> list[Eqn]:
    """Returns loads of memory that the task does not write, whose address depends on the task's index only.

    It stops at the first check: after one, an address may be valid only because of the check.
    """
    found: list[Eqn] = []
    for eqn in facts.task.body.eqns:
        if Effect.CHECK in eqn.primitive.effects or eqn.primitive.structured:
            break
        if eqn.primitive is not LOAD or not is_global(eqn.invars[0]) or reference(eqn) in facts.written:
            continue
        if _at_index_only(facts, eqn):
            found.append(eqn)
    return found


def _at_index_only(facts: TaskFacts, eqn: Eqn) -> bool:
    """Returns whether the emitted address depends on nothing but the task's index."""
    index = facts.task.index
    if ref_type(reference(eqn)).size > MODULAR:  # addresses are computed from the indices as written
        return all(isinstance(a, Literal) or a is index for a in indices_of(eqn))
    return set(_form(facts, eqn).terms) == {index}


def _is_dense(facts: TaskFacts, eqn: Eqn) -> bool:
    index = facts.task.index
    return index is not None and 1 <= _form(facts, eqn).terms.get(index, 0) <= FEW


def _form(facts: TaskFacts, eqn: Eqn) -> Form:
    return facts.forms.address(ref_type(reference(eqn)), indices_of(eqn))
