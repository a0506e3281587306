"""Finds races of a task whose indices are known: by its form, or with the arrays that a call brings.

The accesses that every iteration makes are compared as sets of elements. `m[i, j] = m[j, i]` and `y[i // 2] = x[i]`
race in every run, `x[i] = x[k[i]]` and `h[k[i]] = h[k[i]] + v` by what `k` holds. What a condition lets through is left
out, but for `z[c[()]] = v` and `c[()] += 1` under one. So are stores at an index from data of which any may stay, and
elements that are computed from others, as a relaxation in place is right whichever values it meets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.analysis.accesses import Race
from qdtrace.analysis.index.trips import loop_values
from qdtrace.analysis.known_indices import KnownValues
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference, values_of
from qdtrace.ir.primitives import ACCUM, EQ, FOR, IF, LOAD, STORE
from qdtrace.ir.program import Var
from qdtrace.ir.walk import walk_eqns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from qdtrace.analysis.accesses import Accesses, Site
    from qdtrace.analysis.updates import Update
    from qdtrace.ir.program import Eqn

    Array = np.ndarray[Any, Any]

MOST = 1 << 16
"""Largest number of iterations that are looked at; of more, the first and the last ones."""
_MOST_SITES = 64
"""Largest number of accesses of one buffer that are compared: unrolled bodies may have thousands."""


@frozen(slots=True)
class KnownRaces:
    """The race of a task that is found, and what is not known."""

    race: Race | None
    missing: frozenset[Var]
    """References whose elements may tell more."""


def known_race(found: Accesses, arrays: Mapping[Var, Any], fixed: AbstractSet[Var]) -> KnownRaces:
    """Returns the first race of a task by the indices that are known: `arrays` are elements of references, `fixed` the
    references that nothing stores to."""
    values, task = found.iterations, found.task
    places = [] if values is None else _open_places(found)
    if values is None or not places:
        return KnownRaces(None, frozenset())
    first, end = values.start, values.start + values.count
    ends = [(first, end)] if values.count <= MOST else [(first, first + MOST // 2), (end - MOST // 2, end)]
    iterations = np.concatenate([np.arange(*each, dtype=np.int64) for each in ends])
    loops = [(e.index, v) for e in walk_eqns(task.body) if e.primitive is FOR and (v := loop_values(*e.bounds))]
    steps: list[KnownValues] = []
    for k in (0, 1) if loops else (0,):
        start = {index: np.asarray(v.start + v.step * min(k, max(v.count - 1, 0))) for index, v in loops}
        start |= {task.index: iterations} if task.index is not None else {}
        steps.append(KnownValues(start, found.updates.made, arrays, fixed))
    search = _Comparison(found, steps, len(iterations))
    races = [r for ones in places if (r := search.among(ones)) is not None]
    race = min(races, key=lambda r: r.kind == "stored", default=None)
    return KnownRaces(race, frozenset(v for s in steps for v in s.missing))


def _open_places(found: Accesses) -> list[list[Site]]:
    """Returns the accesses of each written buffer of which nothing proves that iterations have their own elements."""
    by_buffer: dict[Var, list[Site]] = {}
    for site in found.sites:
        by_buffer.setdefault(reference(site.eqn), []).append(site)

    return [
        ones
        for ones in by_buffer.values()
        if _may_meet(ones, found.task.index) and not found.memory.share_a_proof(e for e, _ in ones)
    ]


def _may_meet(ones: Sequence[Site], index: Var | None) -> bool:
    """Returns whether accesses of one buffer may be of another iteration's elements, as far as a look at them tells."""
    if len(ones) > _MOST_SITES or all(e.primitive is ACCUM for e, _ in ones):
        return False
    axes = range(len(indices_of(ones[0][0])))
    return not any(all(indices_of(e)[axis] is index for e, _ in ones) for axis in axes)


@frozen(slots=True)
class _Comparison:
    """Comparison of the accesses of one buffer."""

    found: Accesses
    steps: Sequence[KnownValues]
    count: int

    def among(self, sites: Sequence[Site]) -> Race | None:
        """Returns the first race among accesses of a buffer."""
        updates = {e: self.found.updates.of(e, around) for e, around in sites if e.primitive is STORE}
        always = [(s.eqn, self._places(s.eqn)) for s in sites if s.surely_runs(updates.get(s.eqn))]
        stores = [(e, p) for e, p in always if p is not None and e.primitive is not LOAD]
        reads = [(e, p) for e, p in always if p is not None and e.primitive is LOAD]
        values = {values_of(e)[0] for e, _ in stores}
        stored: Race | None = None
        for store, around in sites:
            if store.primitive is ACCUM and any(self._counts_in_one(store, around, *other) for other in sites):
                return Race("counted", store)
        for store, places in stores:
            update = updates.get(store)
            if update is not None and not (update.always and self._counts(update)):
                continue
            writers = [p for e, p in stores if e.primitive is STORE]
            if store.primitive is STORE and self._meets(places, writers):
                if update is not None:
                    return Race("lost", store, update.operation)
                is_one = self.found.stores_one_value(store)
                if not is_one and not self.found.updates.loads(indices_of(store)):
                    return Race("twice", store)
                value = values_of(store)[0]
                numbers = {self.found.updates.number(values_of(e)[0]) for e, _ in stores if e.primitive is STORE}
                if isinstance(value, Var) and value.dtype.is_float and not (is_one and len(numbers) == 1):
                    stored = stored or Race("stored", store)
            added = [p for e, p in stores if e.primitive is ACCUM]
            if store.primitive is STORE and self._meets(places, added):
                return Race("twice", store)
            own = [p for e, p in reads if self.found.updates.is_element(e.outvar, store)]
            if store.primitive is ACCUM and store.params["op"] == "add" and self._meets(places, own):
                return Race("counted", store)
            moved = [p for e, p in reads if e.outvar in values]
            if store.primitive is STORE and self._meets(places, moved):
                return Race("neighbour", store)
        return stored

    def _counts_in_one(self, store: Eqn, around: Sequence[Eqn], other: Eqn, around_it: Sequence[Eqn]) -> bool:
        """Returns whether a read is of the one element to which iterations add under the same condition."""
        if other.primitive is not LOAD or around != around_it or not self.found.updates.is_element(other.outvar, store):
            return False
        tests = [e.invars[0] for e in around if e.primitive is IF]
        made = [self.found.updates.made.get(t) for t in tests if isinstance(t, Var)]
        is_one = any(e is not None and e.primitive is EQ for e in made)  # it may let one iteration through
        return bool(tests) and not is_one and self.found.is_one_element(store)

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

    def _counts(self, update: Update) -> bool:
        """Returns whether the order of two updates matters, or one of them may be lost."""
        return update.operation in ("add", "sub", "mul") or not all(map(self.found.is_uniform, update.by))
