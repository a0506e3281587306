"""Finds races that every run of a task has, while a function is traced, without running it.

It finds two kinds, in tasks whose trip count is known and more than one: all iterations store different values to one
element; or an iteration reads what another one stores or accumulates. It reads at a fixed distance, as in
`x[i] = x[i - 1] + x[i]`, or where all iterations read, as in `x[i] = x[i] / x[0]`, and in a loop that walks the buffer,
`for j in qd.range(n): f += g(x[j])`, in front of `x[i] += f`. Stores under conditions are left out, as a condition may
let one iteration through; but for a condition that reads what is stored under it, as in a search for the largest. The
interpreter (`debug=True`) finds all races of a run; this finds few, before one.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from qdtrace.analysis.accesses import Race
from qdtrace.analysis.index.boxes import union_size
from qdtrace.analysis.index.footprint import IndexSets
from qdtrace.analysis.index.trips import trip_count
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import FOR, IF, LOAD, NE, STORE
from qdtrace.ir.program import Var, ref_type
from qdtrace.ir.walk import used_vars, walk_eqns

if TYPE_CHECKING:
    from qdtrace.analysis.accesses import Accesses, Site
    from qdtrace.analysis.index.footprint import Box
    from qdtrace.ir.program import Atom, Eqn

_MOST_PLACES = 64
"""Largest number of places of one buffer that are compared pair by pair: unrolled bodies may have thousands."""


def certain_race(found: Accesses) -> Race | None:
    """Returns the first race that a task has in every run, or None if none is certain."""
    task = found.task
    if task.index is None or found.iterations is None:
        return None
    always = [(s.eqn, _conditions(found, s)) for s in found.sites if all(map(_is_entered, s.around))]
    for store, conditions in always:
        if store.primitive is not STORE or not all(_reads(found, c, store) for c in conditions):
            continue
        (value,) = values_of(store)
        if found.is_one_element(store) and not found.is_uniform(value):
            used = any(task.index in used_vars(e) for e in walk_eqns(task.body))
            is_read = bool(conditions) or _reads(found, value, store)
            return Race("update" if is_read else "last" if used else "steps", store)
    plain = [e for e, conditions in always if not conditions]
    if len(plain) > 1 and (race := _at_a_distance(found, plain)) is not None:
        return race
    # Of two iterations, the one that a condition leaves may be the one that stores.
    readers = always if found.iterations.count > 2 else [(e, ()) for e in plain]
    loads = [
        e for e, conditions in readers if e.primitive is LOAD and all(_leaves_out_one(found, c) for c in conditions)
    ]
    return _read_by_all(found, [e for e in plain if e.primitive is not LOAD], loads)


def _is_entered(eqn: Eqn) -> bool:
    return eqn.primitive is IF or (eqn.primitive is FOR and trip_count(*eqn.bounds) != 0)


def _conditions(found: Accesses, site: Site) -> tuple[Atom, ...]:
    """Returns the conditions around an access of which iterations have different values."""
    return tuple(e.invars[0] for e in site.around if e.primitive is IF and not found.is_uniform(e.invars[0]))


def _reads(found: Accesses, value: Atom, store: Eqn) -> bool:
    """Returns whether a value is computed from an element of the buffer that is the same one in all iterations."""
    return any(e.invars[0] is store.invars[0] and found.is_one_element(e) for e in found.updates.loads([value]))


def _leaves_out_one(found: Accesses, condition: Atom) -> bool:
    """Returns whether a condition is `i != j`, which holds for all iterations but one."""
    made = found.updates.made.get(condition) if isinstance(condition, Var) else None
    return made is not None and made.primitive is NE and made.invars[0].dtype.is_integer


def _at_a_distance(found: Accesses, eqns: list[Eqn]) -> Race | None:
    """Returns the race of the first store to an element that another iteration accesses, or None if none is certain."""
    places: dict[Atom, dict[tuple[object, ...], Eqn]] = {}
    for eqn in eqns:
        key = eqn.primitive, *[f.key for f in found.memory.index(eqn)]
        places.setdefault(eqn.invars[0], {}).setdefault(key, eqn)
    for ones in (one.values() for one in places.values() if len(one) <= _MOST_PLACES):
        stores = [e for e in ones if e.primitive is not LOAD]
        proofs = {e: found.memory.proofs(indices_of(e)) for e in ones} if stores else {}
        for store, other in product(stores, ones):
            if proofs[store] & proofs[other]:
                continue  # no other iteration
            loads = other.primitive is LOAD
            one_of_two = store.primitive is other.primitive is STORE and not all(
                found.is_uniform(*values_of(e)) for e in (store, other)
            )
            if (loads or one_of_two) and found.memory.dependence(store, other).distance is not None:
                return Race("neighbour" if loads else "twice", store)
    return None


def _read_by_all(found: Accesses, stores: list[Eqn], loads: list[Eqn]) -> Race | None:
    """Returns the race of the first store to elements of iterations that all of them read."""
    sets: IndexSets | None = None
    shared = [e for e in loads if found.is_one_element(e)]
    for store in stores:
        if store.primitive is STORE and found.is_one_element(store):
            continue  # one value that all of them store, as a flag, may be read
        for load in shared:
            if load.invars[0] is store.invars[0]:
                sets = sets or IndexSets(found.task, found.memory.forms)
                ref = ref_type(load.invars[0])
                if _meet(*(sets.box(ref, indices_of(e), None) for e in (store, load))):
                    return Race("neighbour", store)
    return None


def _meet(a: Box, b: Box) -> bool:
    """Returns whether two accesses surely touch a common element."""
    if not (a.known and b.known) or a.shift or b.shift:
        return False
    either = union_size([a.spans, b.spans])
    return either is not None and either < a.most + b.most
