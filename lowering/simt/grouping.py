"""How many neighbouring iterations a thread takes.

A light body is over before the next block can be started, and asks for too few bytes at a time. Four floats a thread
are one wide load, and a quarter of the blocks: 2.5 times faster on a chain of elementwise operations over 2^26 floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowering.llvm.addresses import MODULAR
from lowering.llvm.facts import reference
from qdtrace.ir.memory import indices_of
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
"""Iterations."""
LIGHT = 48
"""Operations of a body that is light."""
FEW = 3
"""Elements that neighbouring iterations are apart, at most: their accesses together are without holes, or nearly."""
WAVES = 2
"""How often threads that take several iterations must fill the device."""


def group_size(facts: TaskFacts, iterations: int | None, threads_at_once: int) -> int:
    """Neighbouring iterations of one thread: as many as make its accesses wide; 1 where nothing is gained."""
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
    """No loop or branch of the user stands between the accesses of neighbouring iterations."""
    return not any(e.primitive.structured for e in walk_eqns(facts.task.body))


def early_loads(facts: TaskFacts) -> list[Eqn]:
    """What the body loads of memory that nobody writes, at places that only the index decides, before it checks
    anything: behind a check, places may be good because of it."""
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
    """Whether the index of the task is all that the emitted address needs."""
    index = facts.task.index
    if ref_type(reference(eqn)).size > MODULAR:  # by its indices, as they are
        return all(isinstance(a, Literal) or a is index for a in indices_of(eqn))
    return set(_form(facts, eqn).terms) == {index}


def _is_dense(facts: TaskFacts, eqn: Eqn) -> bool:
    index = facts.task.index
    return index is not None and 1 <= _form(facts, eqn).terms.get(index, 0) <= FEW


def _form(facts: TaskFacts, eqn: Eqn) -> Form:
    return facts.forms.address(ref_type(reference(eqn)), indices_of(eqn))
