"""Finds updates of elements that another iteration may update, too, so that what one of them stores is lost.

`h[k] = h[k] + v` loads and stores: two iterations with one `k` lose what one of them adds, while an accumulation,
`h[k] += v`, loses nothing. Whether two have one `k` is data, and with a permutation all is right. So two things are
found: more iterations than elements, and an index that makes one number of many (`k // 2`, a float as an integer).
What the data itself tells is in `known_races`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.trips import surely_runs, task_values
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.analysis.updates import Updates
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of
from qdtrace.ir.primitives import BOUND, CONVERT, DIV, FOR, LOAD, SHIFT_RIGHT_ARITHMETIC, SHIFT_RIGHT_LOGICAL, STORE
from qdtrace.ir.program import Literal, Var, is_global, ref_type
from qdtrace.ir.walk import definitions, walk_nested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.analysis.index.progression import Progression
    from qdtrace.analysis.updates import Update
    from qdtrace.ir.program import Atom, Eqn, Task

_SHIFTS = (SHIFT_RIGHT_ARITHMETIC, SHIFT_RIGHT_LOGICAL)


@frozen(slots=True)
class LostUpdate:
    """A store of what an element held, changed, to an element that another iteration may change."""

    store: Eqn
    operation: str | None
    """The accumulation that is the same: `add`, `sub`, `mul`, `min` or `max`; None if none is."""


def lost_updates(task: Task) -> list[LostUpdate]:
    """Returns the updates of a task that its iterations lose."""
    iterations = task_values(task)
    if task.index is None or task.kind == "serial" or (iterations is not None and iterations.count < 2):
        return []
    stores = [(e, around) for e, around in walk_nested(task.body) if e.primitive is STORE and is_global(e.invars[0])]
    made = definitions(task) if stores else {}
    updates = Updates(made)
    found = [(e, around, update) for e, around in stores if (update := updates.of(e, around)) is not None]
    proofs = Injectivity(task, AffineForms(task)) if found else None
    found = [one for one in found if proofs is not None and not proofs.keys(indices_of(one[0]))]
    if not found:
        return []
    indices = _Indices(task.index, iterations, made, analyse_uniformity(task).varying, updates)
    return [lost for one in found if (lost := indices.lost(*one)) is not None]


@dataclass(slots=True)
class _Origin:
    """The load that an index is computed from; iterations differ in no other value that it reads."""

    load: Eqn
    of_many: bool
    """True if a quotient makes one number of many."""
    of_floats: bool


@frozen(slots=True)
class _Indices:
    """The indices of one task."""

    index: Var
    iterations: Progression | None
    made: Mapping[Var, Eqn]
    varying: frozenset[Var]
    updates: Updates

    def lost(self, store: Eqn, around: Sequence[Eqn], update: Update) -> LostUpdate | None:
        """Returns what is known of an update at indices that nothing tells apart."""
        shape = ref_type(store.invars[0]).shape
        axes = [(n, a) for n, a in zip(shape, indices_of(store), strict=True) if a in self.varying]
        is_varied = any(a in self.varying for a in update.by)
        if not axes or not (is_varied or update.operation in ("add", "sub", "mul")):
            return None  # one element for all (`certain_races`), or one value that all of them store
        always = update.always and all(e is update.asked or (e.primitive is FOR and surely_runs(e)) for e in around)
        is_many = self.iterations is not None and self.iterations.count > prod(n for n, _ in axes)
        if always and is_many:
            return LostUpdate(store, update.operation)
        origins = [o for _, a in axes if (o := self.origin(a)) is not None]
        if update.operation is None or len(origins) < len(axes):
            return None
        if is_many or any(o.of_floats or (o.of_many and len(axes) == 1) for o in origins):
            return LostUpdate(store, update.operation)
        return None

    def origin(self, index: Atom) -> _Origin | None:
        """Returns the load that an index is computed from, or None if iterations differ in something else, too."""
        loads: dict[int, Eqn] = {}
        of_many = of_floats = False
        work: list[Atom] = [index]
        seen: set[Atom] = set()
        while work:
            atom = work.pop()
            if isinstance(atom, Literal) or atom in seen or atom not in self.varying:
                continue
            seen.add(atom)
            eqn = self.made.get(atom)
            if eqn is None or eqn.blocks or (eqn.primitive.effects and eqn.primitive not in (LOAD, BOUND)):
                return None
            if eqn.primitive is LOAD:
                if not is_global(eqn.invars[0]):
                    return None
                loads[self.updates.number(atom)] = eqn
                continue
            of_floats |= eqn.primitive is CONVERT and eqn.invars[0].dtype.is_float and eqn.outvar.dtype.is_integer
            of_many |= eqn.primitive in _SHIFTS or (eqn.primitive is DIV and eqn.outvar.dtype.is_integer)
            work += eqn.invars
        return _Origin(next(iter(loads.values())), of_many, of_floats) if len(loads) == 1 else None
