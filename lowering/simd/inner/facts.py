"""Loops whose trips may run side by side: no trip meets what another one writes, and carries are sums or scans.

Loops inside of a trip run equally often in all of them, so they are loops of vectors.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from lowering.llvm.types import MEMORY, PRIVATE
from lowering.plan.derived_facts import DerivedFacts
from lowering.plan.sums import Where
from lowering.simd.inner.scans import scan_of, scheduled
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.trips import loop_values, trip_count
from qdtrace.analysis.uniformity import Uniformity, analyse_uniformity
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.carries import carried_params
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, ADD, AND, ATOMIC, BOUND, FOR, LOAD, MAX, MIN, OR, SUB
from qdtrace.ir.program import Block, Eqn, Task, Var, is_local
from qdtrace.ir.types import DType
from qdtrace.ir.walk import is_innermost, used_in_block, walk_eqns, walk_inside, walk_often

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowering.llvm.facts import TaskFacts
    from lowering.plan.sums import Sums
    from qdtrace.analysis.index.affine import AffineForms
    from qdtrace.ir.program import Atom

SUMMED = frozenset({DType.bool, DType.f32, DType.f64, DType.i32, DType.i64, DType.u32, DType.u64})
"""Dtypes of carries that lanes may sum apart: narrower ones round or wrap after each operation."""


@mutable(eq=False)
class InnerFacts(DerivedFacts):
    """Facts about a loop as a task over its trips; values from outside of it are as in the task around it."""

    @cached_property
    def forms(self) -> AffineForms:
        """The affine forms of the whole task's values."""
        return self.whole.forms

    @cached_property
    def definitions(self) -> dict[Var, Eqn]:
        """The equations that bind the whole task's variables."""
        return self.whole.definitions

    @cached_property
    def exclusive_accums(self) -> frozenset[Var]:
        """All references that the loop accumulates into, since its trips are apart."""
        return frozenset(reference(e) for e in walk_eqns(self.task.body) if e.primitive is ACCUM)

    @cached_property
    def divisors(self) -> dict[Var, Var]:
        """The whole task's reciprocals, with their divisors."""
        return self.whole.divisors


@frozen(eq=False)
class InnerLoop:
    """A loop whose trips may be lanes."""

    eqn: Eqn
    facts: InnerFacts
    uniformity: Uniformity
    first: int
    """The smallest index of a trip; the others follow it one by one."""
    trips: int
    sums: tuple[str | None, ...]
    """The operation by which each carry is summed; None for one that trips read, which is a scan."""
    scans: dict[Eqn, Var]
    """The equations that combine carries which trips read, with these carries."""
    descends: bool
    """True if scans begin at the largest index; other loops walk up through memory, whatever their step is."""
    width: int = 1
    vectors: int = 1


def inner_loops(facts: TaskFacts, sums: Sums, reassociates: bool) -> dict[Eqn, InnerLoop]:
    """Returns the loops of a task whose trips may be lanes, in the order of the program, those around others first.

    Floats are added in another order if it `reassociates`.
    """
    found = (e for e in walk_often(facts.task.body) if e.primitive is FOR)
    loops = (_inner_loop(facts, eqn, sums, reassociates) for eqn in found)
    return {loop.eqn: loop for loop in loops if loop is not None}


def _inner_loop(facts: TaskFacts, eqn: Eqn, sums: Sums, reassociates: bool) -> InnerLoop | None:
    (block,), values = eqn.blocks, loop_values(*eqn.bounds)
    if values is None or abs(values.step) != 1 or not values.count or not all(map(_is_alike, walk_inside(eqn))):
        return None
    carries, reads = carried_params(eqn, block), Counter(used_in_block(block))
    reader = {a: e for e in block.eqns for a in e.invars if isinstance(a, Var)}
    ops = [_operation(reader, reads, c, r, reassociates) for c, r in zip(carries, block.results, strict=True)]
    others = [(c, r) for c, r, op in zip(carries, block.results, ops, strict=True) if op is None]
    made: dict[Atom, Eqn] = {v: e for e in block.eqns for v in e.outvars}
    found = [(scan_of(made.get(r), c, reassociates), c) for c, r in others]
    scans = {e: c for e, c in found if e is not None and c.dtype in SUMMED}
    if len(scans) < len(others) or (scans and not is_innermost(eqn)):
        return None
    eqns = scheduled(block.eqns, scans) if scans else block.eqns
    if eqns is None:
        return None
    first = min(values.start, values.start + values.step * (values.count - 1))
    index = block.params[0]
    task = Task("range_for", index, *eqn.bounds[:2], Block((), eqns, ()))
    uniformity = analyse_uniformity(task, varying=frozenset(carries))
    if not _trips_are_apart(facts, eqn, uniformity, sums):
        return None
    descends = bool(scans) and values.step < 0
    return InnerLoop(eqn, InnerFacts(task, facts, {}), uniformity, first, values.count, tuple(ops), scans, descends)


def _is_alike(eqn: Eqn) -> bool:
    """Returns whether an equation of a trip has no blocks, or is a loop that runs equally often in all trips."""
    return not eqn.blocks or (eqn.primitive is FOR and trip_count(*eqn.bounds) is not None)


def _operation(
    reader: Mapping[Var, Eqn], reads: Counter[Var], carry: Var, result: Atom, reassociates: bool
) -> str | None:
    """Returns the operation that a loop sums a carry by, or None if it does anything else with it.

    `reads` counts the reads of each value anywhere in the body, and `reader` has an equation of the body that reads it.
    """
    if carry.dtype not in SUMMED:
        return None
    current, op = carry, None
    while current is not result:
        eqn = reader.get(current)
        if eqn is None or reads[current] != 1:
            return None
        name = _COMBINED.get(eqn.primitive.name) if eqn.primitive is not SUB or eqn.invars[0] is current else None
        if name is None or op not in (None, name):
            return None
        op, current = name, eqn.outvars[0]
    if op is None or reads[current] != 1 or (op == "add" and carry.dtype.is_float and not reassociates):
        return None
    return op


_COMBINED = {ADD.name: "add", SUB.name: "add", MAX.name: "max", MIN.name: "min", OR.name: "or", AND.name: "and"}


def _trips_are_apart(facts: TaskFacts, loop: Eqn, uniformity: Uniformity, sums: Sums) -> bool:
    """Returns whether no trip meets what another one writes, and lanes need no masks, nor checks but of indices."""
    accesses: dict[Var, list[Eqn]] = {}
    for eqn in walk_inside(loop):
        prim = eqn.primitive
        if prim is ATOMIC or (prim.effects and not prim.is_access and prim is not BOUND):
            return False
        if not prim.is_access:
            continue
        ref = reference(eqn)
        accesses.setdefault(ref, []).append(eqn)
        if is_local(ref):
            if MEMORY[ref.dtype] != PRIVATE[ref.dtype] or uniformity.varying.isdisjoint(indices_of(eqn)):
                return False
        elif prim is ACCUM and sums.where(eqn) is not Where.OWN:
            return False
    return all(
        all(e.primitive is LOAD for e in found) or _is_own(facts, found, loop) for found in accesses.values()
    )


def _is_own(facts: TaskFacts, accesses: list[Eqn], loop: Eqn) -> bool:
    """Returns whether each element that accesses of a loop touch is touched in one trip of it alone."""
    injectivity = Injectivity(facts.task, facts.forms, loop)
    first, *others = [injectivity.keys(indices_of(e)) for e in accesses]
    return bool(first.intersection(*others))
