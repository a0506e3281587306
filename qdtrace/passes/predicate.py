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

Pure equations never fail. A load cannot fail if its indices are in range and every element is stored already
(`analysis/index/definite_stores`), in a reference that the task does not write: else it could race with a store of
another iteration.

Cost. Lanes that disagree compute both sides anyway, under masks. Straight code saves the masks of loads and stores, and
lets equal values be shared with the code around; a branch saves a whole side when no lane takes it. Measured on the
CPU with AVX-512, straight code against branch in a loop of 64 steps: sides with loads 0.6, both where lanes disagree
and where they agree; arithmetic alone 1.0, as such sides run without a branch anyway; `exp` 1.05 where they disagree, 3
where none takes it. A store on both sides of a pass over memory: 0.5. So what `analysis/branches` allows is computed
always, but never a function that is a polynomial and more, nor a load at an index that is no affine form of the task's:
a gather touches a cache line a lane. A condition that all lanes share is a real branch: kept, unless both sides cost
nothing beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from qdtrace.analysis.branches import pays_without_jump
from qdtrace.analysis.cost import eqn_size
from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.definite_stores import FullBefore
from qdtrace.analysis.index.ranges import TaskRanges
from qdtrace.analysis.machine import CPU
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.frozen import frozen
from qdtrace.ir.carries import carries_of
from qdtrace.ir.memory import values_of, written
from qdtrace.ir.primitives import IF, LOAD, SELECT, STORE
from qdtrace.ir.program import Block, Eqn, Program, Task, Var, ref_type
from qdtrace.ir.rebuild import Rebuilder
from qdtrace.ir.walk import walk_eqns
from qdtrace.passes.base import TaskPass
from qdtrace.passes.motion import load_cannot_fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.machine import Machine


@frozen
class Predicate(TaskPass):
    """Turns branches into selects."""

    name: ClassVar[str] = "predicate"
    machine: Machine = CPU

    def on_task(self, task: Task, program: Program) -> Task:
        if not any(e.primitive is IF for e in walk_eqns(task.body)):
            return task
        return task.rebuilt(_Predicator(task, program, self.machine).rebuild_block(task.body))


class _Predicator(Rebuilder):
    """Rebuilds a task with selects in place of branches; a result that is the same on both sides needs none."""

    def __init__(self, task: Task, program: Program, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._index = task.index
        self._uniformity = analyse_uniformity(task)
        self._forms = AffineForms(task)
        self._ranges = TaskRanges(task)
        self._full = FullBefore(program, task)
        self._written = set(written(task.all_eqns))

    def visit(self, eqn: Eqn) -> None:
        """Appends an equation, or straight code for a branch, if that is right and pays."""
        if eqn.primitive.loops:
            self._ranges.enter(eqn.rebuilt(self.atoms(eqn.invars)))
        made = self.rebuild_eqn(eqn)
        if eqn.primitive is not IF or not self._flatten(made, eqn in self._uniformity.divergent):
            self.append(made)

    def _flatten(self, eqn: Eqn, divergent: bool) -> bool:
        then, other = map(_split, eqn.blocks)
        if then is None or other is None or len(then.stores) != len(other.stores):
            return False
        for a, b in zip(then.stores, other.stores, strict=True):
            if a.invars[0] is not b.invars[0] or a.invars[2:] != b.invars[2:]:
                return False
        values = (*then.values, *other.values)
        if not all(self._is_allowed(e) for e in values):
            return False
        if not pays_without_jump(sum(map(eqn_size, values)), self._machine, divergent=divergent):
            return False
        self.loc = eqn.loc
        condition = eqn.invars[0]
        for each in values:
            self.append(each)
        for carry in carries_of(eqn):
            a, b = carry.results
            if a is b or a == b:
                self.env[carry.outvar] = a
            else:
                self.append(Eqn(SELECT, (condition, a, b), (carry.outvar,), {}, (), eqn.loc))
        for store, opposite in zip(then.stores, other.stores, strict=True):
            (a,), (b,) = values_of(store), values_of(opposite)
            value = a if a is b or a == b else self("select", condition, a, b)
            self.append(store.rebuilt((store.invars[0], value, *store.invars[2:])))
        return True

    def _is_allowed(self, eqn: Eqn) -> bool:
        """Returns whether an equation cannot fail, and its cost is as small as estimated: no function, no gather."""
        if not eqn.primitive.effects:
            return not eqn.primitive.is_function
        ref, *indices = eqn.invars
        if ref in self._written or not load_cannot_fail(eqn, self._full, self._ranges):
            return False
        for term, stride in self._forms.address(ref_type(ref), indices).terms.items():
            if term is self._index:
                if abs(stride) > self._machine.near_stride:
                    return False
            elif not isinstance(term, Var) or not self._uniformity.is_uniform(term):
                return False
        return True


@frozen(slots=True)
class _Side:
    """One side of a branch: the equations that compute values, and the stores in their order."""

    values: Sequence[Eqn]
    stores: Sequence[Eqn]


def _split(block: Block) -> _Side | None:
    """Returns the parts of a side, or None if it has anything but pure equations, loads and stores."""
    values: list[Eqn] = []
    stores: list[Eqn] = []
    for eqn in block.eqns:
        if eqn.blocks or (eqn.primitive.effects and eqn.primitive not in (LOAD, STORE)):
            return None
        if eqn.primitive is STORE:
            stores.append(eqn)
        else:
            values.append(eqn)
    return _Side(values, stores)
