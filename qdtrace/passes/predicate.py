"""Predication: an `if` that lanes disagree on, with cheap sides that cannot fail, becomes straight code with selects.

Before:  p: bool = lt a 0.0:f32          After:  p: bool = lt a 0.0:f32
         if p                                    b: f32 = load x i
           b: f32 = load x i                     c: f32 = exp b
           c: f32 = exp b                        d: f32 = select p c 1.0:f32
           store y c i                           store y d i
         else
           store y 1.0:f32 i

Both sides are computed. Results become selects; stores become one store of a select where both sides store to the same
places in the same order. A store, accumulation or atomic of one side alone stays
in its branch: other iterations may hold the place.

Pure equations never fail. A load does not where its indices are in range and every element is stored already
(`analysis/stored`), in a reference that the task does not write: else the value read for nothing could be another
iteration's.

Cost. Lanes that disagree compute both sides anyway, under masks. Straight code saves the masks of loads and stores, and
lets equal values be shared with the code around; a branch saves a whole side when no lane takes it. Measured on the
CPU with AVX-512, straight code against branch in a loop of 64 steps: sides with loads 0.6, both where lanes disagree
and where they agree; arithmetic alone 1.0, as the emitter flattens it itself; `exp` 1.05 where they disagree, 3 where
none takes it. A store on both sides of a pass over memory: 0.5. So up to `DIVERGENT_COST` (the emitter's own limit) is
computed always, but never a function that is a polynomial and more, nor a load at an index that is no affine form of
the task's: a gather touches a cache line a lane. A condition that all lanes share is a real branch: kept, unless both
sides cost nothing beside it (`UNIFORM_COST`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.affine import AffineForms
from qdtrace.analysis.cost import eqn_size
from qdtrace.analysis.effects import task_access
from qdtrace.analysis.stored import FullBefore
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.ir.copies import copied_atoms
from qdtrace.ir.primitives import PRIMITIVES
from qdtrace.ir.program import Atom, Block, Eqn, Program, Task, Var, ref_type
from qdtrace.ir.types import ScalarType
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass
from qdtrace.passes.loop_invariant import load_cannot_fail, ranges_of

if TYPE_CHECKING:
    from collections.abc import Sequence

DIVERGENT_COST = 24
"""Operations of both sides that are computed where lanes disagree."""
UNIFORM_COST = 6
"""The same where they agree."""
_STRIDE = 4
"""Elements between the loads of neighbouring lanes, at most."""
_SELECT = PRIMITIVES["select"]


@dataclass(frozen=True)
class Predicate(TaskPass):
    """Branches to selects."""

    name: ClassVar[str] = "predicate"

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive.name == "if" for e in walk_eqns(task.body)):
            return task
        body = _Predicator(task, program).block(task.body)
        return task if body is task.body else replace(task, body=body)


class _Predicator:
    """Rewrites a task; results that both sides give alike are replaced."""

    def __init__(self, task: Task, program: Program) -> None:
        self._index = task.index
        self._uniformity = analyse_uniformity(task)
        self._forms = AffineForms(task)
        self._ranges = ranges_of(task)
        self._full = FullBefore(program, task)
        self._written = task_access(task).writes
        self._replaced: dict[Var, Atom] = {}

    def block(self, block: Block) -> Block:
        out: list[Eqn] = []
        for eqn in block.eqns:
            self._visit(eqn, out)
        results = copied_atoms(block.results, self._replaced)
        same = len(out) == len(block.eqns) and all(a is b for a, b in zip(out, block.eqns, strict=True))
        if same and all(a is b for a, b in zip(results, block.results, strict=True)):
            return block
        return Block(block.params, tuple(out), results)

    def _visit(self, original: Eqn, out: list[Eqn]) -> None:
        eqn = original
        if self._replaced:
            invars = copied_atoms(eqn.invars, self._replaced)
            if any(a is not b for a, b in zip(invars, eqn.invars, strict=True)):
                eqn = replace(eqn, invars=invars)
        if eqn.blocks:
            if eqn.primitive.name == "for":
                self._ranges.set_index(eqn.blocks[0].params[0], *eqn.invars[:3])
            blocks = tuple([self.block(b) for b in eqn.blocks])
            if any(a is not b for a, b in zip(blocks, eqn.blocks, strict=True)):
                eqn = replace(eqn, blocks=blocks)
            if eqn.primitive.name == "if" and self._flatten(eqn, original in self._uniformity.divergent, out):
                return
        out.append(eqn)

    def _flatten(self, eqn: Eqn, divergent: bool, out: list[Eqn]) -> bool:
        """Appends straight code for a branch, if that is right and pays."""
        then, other = map(_split, eqn.blocks)
        if then is None or other is None or len(then.stores) != len(other.stores):
            return False
        for a, b in zip(then.stores, other.stores, strict=True):
            if a.invars[0] is not b.invars[0] or a.invars[2:] != b.invars[2:]:
                return False
        values = (*then.values, *other.values)
        if not all(self._is_allowed(e) for e in values):
            return False
        if sum(map(eqn_size, values)) > (DIVERGENT_COST if divergent else UNIFORM_COST):
            return False
        condition = eqn.invars[0]
        out += values
        for var, a, b in zip(eqn.outvars, eqn.blocks[0].results, eqn.blocks[1].results, strict=True):
            if a is b or a == b:
                self._replaced[var] = a
            else:
                out.append(Eqn(_SELECT, (condition, a, b), (var,), {}, (), eqn.loc))
        for a, b in zip(then.stores, other.stores, strict=True):
            value = a.invars[1]
            if value is not b.invars[1] and value != b.invars[1]:
                chosen = Var(ScalarType(value.dtype))
                out.append(Eqn(_SELECT, (condition, value, b.invars[1]), (chosen,), {}, (), eqn.loc))
                value = chosen
            out.append(replace(a, invars=(a.invars[0], value, *a.invars[2:])))
        return True

    def _is_allowed(self, eqn: Eqn) -> bool:
        """Cannot fail, and costs what it is said to."""
        if not eqn.primitive.effects:
            return not eqn.primitive.is_function
        ref, *indices = eqn.invars
        if ref in self._written or not load_cannot_fail(eqn, self._full, self._ranges):
            return False
        for term, stride in self._forms.address(ref_type(ref), indices).terms.items():
            if term is self._index:
                if abs(stride) > _STRIDE:
                    return False
            elif not isinstance(term, Var) or not self._uniformity.is_uniform(term):
                return False
        return True


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a branch: what computes values, and the stores in their order."""

    values: Sequence[Eqn]
    stores: Sequence[Eqn]


def _split(block: Block) -> _Side | None:
    """The parts of a side; None where it holds anything but values, loads and stores."""
    values: list[Eqn] = []
    stores: list[Eqn] = []
    for eqn in block.eqns:
        if eqn.blocks or (eqn.primitive.effects and eqn.primitive.name not in ("load", "store")):
            return None
        if eqn.primitive.name == "store":
            stores.append(eqn)
        else:
            values.append(eqn)
    return _Side(values, stores)
