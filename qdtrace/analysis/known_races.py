"""Finds races of a task whose indices are known: by its form, or with the arrays that a call brings.

The accesses that every iteration makes are compared as sets of elements. `m[i, j] = m[j, i]` and `y[i // 2] = x[i]`
race in every run, `x[i] = x[k[i]]` and `h[k[i]] = h[k[i]] + v` by what `k` holds. What a condition lets through is left
out, but for `z[c[()]] = v` and `c[()] += 1` under one. So are stores at an index from data of which any may stay, and
elements that are computed from others, as a relaxation in place is right whichever values it meets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.trips import loop_values, surely_runs, task_values
from qdtrace.analysis.known_indices import KnownValues
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.analysis.updates import Update, Updates
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import ACCUM, EQ, FOR, IF, LOAD, STORE
from qdtrace.ir.program import Var, is_global
from qdtrace.ir.walk import definitions, walk_eqns, walk_nested

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from qdtrace.ir.program import Eqn, Task

    Array = np.ndarray[Any, Any]
    Site = tuple[Eqn, Sequence[Eqn]]
    """An access, and the equations around it."""

MOST = 1 << 16
"""Largest number of iterations that are looked at; of more, the first and the last ones."""
_MOST_SITES = 64
"""Largest number of accesses of one buffer that are compared: unrolled bodies may have thousands."""


@dataclass(frozen=True, slots=True)
class KnownRace:
    """A store to an element that another iteration accesses."""

    store: Eqn
    kind: str
    """`lost` (an update of what the element held), `twice` (another store), `neighbour` (it is read) or `counted` (what
    all accumulate is read)."""
    operation: str | None = None
    """The accumulation that a lost update is, or None if it is none."""


@dataclass(frozen=True, slots=True)
class KnownRaces:
    """The race of a task that is found, and what is not known."""

    race: KnownRace | None
    missing: frozenset[Var]
    """References whose elements may tell more."""


def known_race(task: Task, arrays: Mapping[Var, Any], fixed: AbstractSet[Var]) -> KnownRaces:
    """Returns the first race of a task by the indices that are known: `arrays` are elements of references, `fixed` the
    references that nothing stores to."""
    values = task_values(task)
    if task.index is None or task.kind == "serial" or values is None or values.count < 2:
        return KnownRaces(None, frozenset())
    sites = _open_sites(task)
    if not sites:
        return KnownRaces(None, frozenset())
    first, end = values.start, values.start + values.count
    ends = [(first, end)] if values.count <= MOST else [(first, first + MOST // 2), (end - MOST // 2, end)]
    iterations = np.concatenate([np.arange(*each, dtype=np.int64) for each in ends])
    made = definitions(task)
    loops = [(e.index, v) for e in walk_eqns(task.body) if e.primitive is FOR and (v := loop_values(*e.bounds))]
    steps: list[KnownValues] = []
    for k in (0, 1) if loops else (0,):
        start = {index: np.asarray(v.start + v.step * min(k, max(v.count - 1, 0))) for index, v in loops}
        steps.append(KnownValues({task.index: iterations, **start}, made, arrays, fixed))
    search = _Comparison(task, steps, Updates(made), analyse_uniformity(task).varying, len(iterations))
    race = next((r for ones in sites.values() if (r := search.among(ones)) is not None), None)
    return KnownRaces(race, frozenset(v for s in steps for v in s.missing))


def _open_sites(task: Task) -> dict[Var, list[Site]]:
    """Returns the accesses of each written buffer of which nothing proves that iterations have their own elements."""
    accesses = [(e, around) for e, around in walk_nested(task.body) if e.primitive in (LOAD, STORE, ACCUM)]
    written = {reference(e) for e, _ in accesses if e.primitive in (STORE, ACCUM) and is_global(e.invars[0])}
    found: dict[Var, list[Site]] = {}
    for eqn, around in accesses:
        if reference(eqn) in written:
            found.setdefault(reference(eqn), []).append((eqn, around))
    found = {ref: ones for ref, ones in found.items() if _may_meet(ones, task.index)}
    proofs = Injectivity(task, AffineForms(task)) if found else None

    def is_open(ones: Sequence[Site]) -> bool:
        if proofs is None:
            return False
        shared, *others = (proofs.keys(indices_of(e)) for e, _ in ones)
        return not shared.intersection(*others)

    return {ref: ones for ref, ones in found.items() if is_open(ones)}


def _may_meet(ones: Sequence[Site], index: Var | None) -> bool:
    """Returns whether accesses of one buffer may be of another iteration's elements, as far as a look at them tells."""
    if len(ones) > _MOST_SITES or all(e.primitive is ACCUM for e, _ in ones):
        return False
    axes = range(len(indices_of(ones[0][0])))
    return not any(all(indices_of(e)[axis] is index for e, _ in ones) for axis in axes)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """Comparison of the accesses of one buffer."""

    task: Task
    steps: Sequence[KnownValues]
    updates: Updates
    varying: frozenset[Var]
    count: int

    def among(self, sites: Sequence[Site]) -> KnownRace | None:
        """Returns the first race among accesses of a buffer."""
        updates = {e: self.updates.of(e, around) for e, around in sites if e.primitive is STORE}
        always = [(e, self._places(e)) for e, around in sites if self._runs(around, updates.get(e))]
        stores = [(e, p) for e, p in always if p is not None and e.primitive is not LOAD]
        reads = [(e, p) for e, p in always if p is not None and e.primitive is LOAD]
        values = {values_of(e)[0] for e, _ in stores}
        for store, around in sites:
            if store.primitive is ACCUM and any(self._counts_in_one(store, around, *other) for other in sites):
                return KnownRace(store, "counted")
        for store, places in stores:
            update = updates.get(store)
            if update is not None and not (update.always and self._counts(update)):
                continue
            writers = [p for e, p in stores if e.primitive is STORE]
            if store.primitive is STORE and self._meets(places, writers):
                if update is not None:
                    return KnownRace(store, "lost", update.operation)
                if update is None and self._differs(store) and not self._is_data(store):
                    return KnownRace(store, "twice")
            added = [p for e, p in stores if e.primitive is ACCUM]
            if store.primitive is STORE and self._meets(places, added):
                return KnownRace(store, "twice")
            own = [p for e, p in reads if self.updates.is_element(e.outvar, store)]
            if store.primitive is ACCUM and store.params["op"] == "add" and self._meets(places, own):
                return KnownRace(store, "counted")
            moved = [p for e, p in reads if e.outvar in values]
            if store.primitive is STORE and self._meets(places, moved):
                return KnownRace(store, "neighbour")
        return None

    def _counts_in_one(self, store: Eqn, around: Sequence[Eqn], other: Eqn, around_it: Sequence[Eqn]) -> bool:
        """Returns whether a read is of the one element to which iterations add under the same condition."""
        if other.primitive is not LOAD or around != around_it or not self.updates.is_element(other.outvar, store):
            return False
        tests = [e.invars[0] for e in around if e.primitive is IF]
        made = [self.updates.made.get(t) for t in tests if isinstance(t, Var)]
        is_one = any(e is not None and e.primitive is EQ for e in made)  # it may let one iteration through
        return bool(tests) and not is_one and not any(a in self.varying for a in indices_of(store))

    def _runs(self, around: Sequence[Eqn], update: Update | None) -> bool:
        asked = None if update is None else update.asked
        return all(e is asked or (e.primitive is FOR and surely_runs(e)) for e in around)

    def _places(self, eqn: Eqn) -> Array | None:
        """Returns the elements by step and iteration, or None if they are not known."""
        found = [s.place(eqn) for s in self.steps]
        known = [np.broadcast_to(f, (self.count,)) for f in found if f is not None]
        return np.stack(known) if len(known) == len(found) else None

    def _meets(self, places: Array, others: Sequence[Array]) -> bool:
        """Returns whether an element of one iteration is among `others` in another iteration."""
        numbers = np.arange(self.count)
        order = np.argsort(places, axis=None, kind="stable")
        held = places.reshape(-1)[order]
        owner = np.broadcast_to(numbers, places.shape).reshape(-1)[order]
        elements, first = np.unique(held, return_index=True)
        low, high = np.minimum.reduceat(owner, first), np.maximum.reduceat(owner, first)
        for other in others:
            at = np.minimum(np.searchsorted(elements, other), len(elements) - 1)
            met = elements[at] == other
            if (met & ((low[at] != numbers) | (high[at] != numbers))).any():
                return True
        return False

    def _differs(self, store: Eqn) -> bool:
        return values_of(store)[0] in self.varying

    def _is_data(self, access: Eqn) -> bool:
        return bool(self.updates.loads(indices_of(access)))

    def _counts(self, update: Update) -> bool:
        """Returns whether the order of two updates matters, or one of them may be lost."""
        return update.operation in ("add", "sub", "mul") or any(a in self.varying for a in update.by)
