"""The accesses of a task that may race, and what the searches for races ask of them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from qdtrace.analysis.index.trips import surely_runs, task_values
from qdtrace.analysis.memory import TaskMemory
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.analysis.updates import Updates
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import ACCUM, BOUND, FOR, LOAD, STORE
from qdtrace.ir.program import Var, is_global
from qdtrace.ir.walk import walk_nested

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from qdtrace.analysis.updates import Update
    from qdtrace.ir.program import Atom, Eqn, Task


class Site(NamedTuple):
    """An access, and the equations around it, outermost first."""

    eqn: Eqn
    around: Sequence[Eqn]

    def surely_runs(self, update: Update | None = None) -> bool:
        """Returns whether each iteration gets here, but for the condition by which an update asks for an extreme."""
        asked = None if update is None else update.asked
        return all(e is asked or (e.primitive is FOR and surely_runs(e)) for e in self.around)


@frozen(slots=True)
class Race:
    """A store to an element that another iteration accesses."""

    kind: str
    """`steps` (one element, and no iteration asks which one it is), `update` (one element, whose old value is read),
    `last` (one element), `lost` (an update of what the element held), `twice` (another store), `neighbour` (it is
    read), `counted` (what all accumulate is read) or `stored` (another store of another value, where any may stay but
    in gradients)."""
    store: Eqn
    operation: str | None = None
    """The accumulation that is the same as a lost update: `add`, `sub`, `mul`, `min` or `max`; None if none is."""


class Accesses:
    """The accesses of one task to the buffers that it writes; none where it has not several iterations in no order."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.iterations = task_values(task)
        """The values of the index; None if they are not known."""
        several = task.kind != "serial" and (self.iterations is None or self.iterations.count > 1)
        nested = map(Site._make, walk_nested(task.body) if task.index is not None and several else ())
        kinds = LOAD, STORE, ACCUM
        sites = [s for s in nested if s.eqn.primitive in kinds and is_global(s.eqn.invars[0])]
        written = {reference(s.eqn) for s in sites if s.eqn.primitive is not LOAD}
        self.sites = [s for s in sites if reference(s.eqn) in written]

    @cached_property
    def updates(self) -> Updates:
        """The updates among the stores, and the equation that makes each variable."""
        return Updates(self.task.definitions)

    @cached_property
    def memory(self) -> TaskMemory:
        """Forms of the indices, and proofs of what iterations touch."""
        return TaskMemory(self.task)

    @cached_property
    def is_uniform(self) -> Callable[[Atom], bool]:
        """Returns whether all iterations have one value; what they read of buffers that the task writes may differ."""
        racing = frozenset(s.eqn.outvar for s in self.sites if s.eqn.primitive is LOAD)
        return analyse_uniformity(self.task, varying=racing).is_uniform

    def is_one_element(self, eqn: Eqn) -> bool:
        """Returns whether all iterations access one element."""
        return all(map(self.is_uniform, indices_of(eqn)))

    def stores_one_value(self, store: Eqn) -> bool:
        """Returns whether iterations that store to one element store one value: it follows from the indices."""
        known = {self.updates.number(self._unchecked(a)) for a in indices_of(store)}
        written = {reference(s.eqn) for s in self.sites}
        work: list[Atom] = [*values_of(store)]
        seen: set[Atom] = set()
        while work:
            atom = work.pop()
            if self.is_uniform(atom) or atom in seen or self.updates.number(self._unchecked(atom)) in known:
                continue
            seen.add(atom)
            made = self.updates.made.get(atom) if isinstance(atom, Var) else None
            if made is None or made.blocks:
                return False
            if made.primitive is LOAD and reference(made) not in written and is_global(made.invars[0]):
                work += indices_of(made)
            elif made.primitive.effects and made.primitive is not BOUND:
                return False
            else:
                work += made.invars
        return True

    def _unchecked(self, atom: Atom) -> Atom:
        made = self.updates.made.get(atom) if isinstance(atom, Var) else None
        return atom if made is None or made.primitive is not BOUND else made.invars[0]
