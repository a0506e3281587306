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

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.boxes import union_size
from qdtrace.analysis.index.dependence import IterationSpace, dependence_between
from qdtrace.analysis.index.footprint import IndexSets
from qdtrace.analysis.index.trips import task_values, trip_count
from qdtrace.analysis.uniformity import analyse_uniformity
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, values_of
from qdtrace.ir.primitives import ACCUM, FOR, IF, LOAD, STORE
from qdtrace.ir.program import Var, is_global, ref_type
from qdtrace.ir.walk import definitions, used_vars, walk_eqns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.index.footprint import Box
    from qdtrace.analysis.index.progression import Progression
    from qdtrace.analysis.uniformity import Uniformity
    from qdtrace.ir.program import Atom, Block, Eqn, Task

_MOST_PLACES = 64
"""Largest number of places of one buffer that are compared pair by pair: unrolled bodies may have thousands."""


@frozen(slots=True)
class Race:
    """A store to an element that another iteration accesses."""

    kind: str
    """`steps` (one element, and no iteration asks which one it is), `update` (one element, whose old value is read),
    `last` (one element), `neighbour` (read at a distance) or `twice` (stored at a distance)."""
    store: Eqn


def certain_race(task: Task) -> Race | None:
    """Returns the first race that the task has in every run, or None if none is certain."""
    iterations = task_values(task)
    if task.index is None or task.kind == "serial" or iterations is None or iterations.count < 2:
        return None
    eqns = [*walk_eqns(task.body)]
    written = {e.invars[0] for e in eqns if e.primitive in (STORE, ACCUM) and is_global(e.invars[0])}
    if not written:
        return None
    racing = frozenset(e.outvars[0] for e in eqns if e.primitive is LOAD and e.invars[0] in written)
    facts = analyse_uniformity(task, varying=racing)
    search = _Search(task, facts)
    always = [*search.always(task.body)]
    for store, conditions in always:
        if store.primitive is STORE and is_global(store.invars[0]):
            reads = search.reads(values_of(store)[0], store.invars[0])
            if any(not search.reads(c, store.invars[0]) for c in conditions):
                continue
            if all(map(facts.is_uniform, indices_of(store))) and not facts.is_uniform(values_of(store)[0]):
                used = any(task.index in used_vars(e) for e in eqns)
                return Race("update" if reads or conditions else "last" if used else "steps", store)
    plain = [e for e, conditions in always if not conditions and e.invars[0] in written]
    if len(plain) > 1 and (race := _at_a_distance(task, iterations, plain, facts)) is not None:
        return race
    stores = [e for e in plain if e.primitive in (STORE, ACCUM)]
    loads = [e for e, conditions in always if e.primitive is LOAD and all(map(search.leaves_out_one, conditions))]
    if iterations.count == 2:  # the one that a condition leaves may be the one that stores
        loads = [e for e in loads if e in plain]
    return _read_by_all(task, stores, loads, facts)


def _at_a_distance(task: Task, iterations: Progression, eqns: list[Eqn], facts: Uniformity) -> Race | None:
    """Returns the race of the first store to an element that another iteration accesses, or None if none is certain."""
    assert task.index is not None
    forms = AffineForms(task, flips=True)
    space = IterationSpace(task.index, iterations, {v for e in task.head for v in e.outvars})
    places: dict[Atom, dict[tuple[object, ...], tuple[Eqn, list[Form]]]] = {}
    for eqn in eqns:
        place = [forms.of(a) for a in indices_of(eqn)]
        key = eqn.primitive, *[f.key for f in place]
        places.setdefault(eqn.invars[0], {}).setdefault(key, (eqn, place))
    for ref, found in places.items():
        stores = [one for one in found.values() if one[0].primitive in (STORE, ACCUM)]
        if not stores or len(found) > _MOST_PLACES:
            continue
        for (store, first), (other, second) in product(stores, found.values()):
            loads = other.primitive is LOAD
            if other is store or (not loads and not _leaves_one_of_two(store, other, facts)):
                continue
            if dependence_between(ref_type(ref), first, second, (forms, forms), space).distance is not None:
                return Race("neighbour" if loads else "twice", store)
    return None


def _leaves_one_of_two(a: Eqn, b: Eqn, facts: Uniformity) -> bool:
    """Returns whether two writes to an element leave one of two values, by their order."""
    return a.primitive is b.primitive is STORE and not all(facts.is_uniform(values_of(e)[0]) for e in (a, b))


def _read_by_all(task: Task, stores: list[Eqn], loads: list[Eqn], facts: Uniformity) -> Race | None:
    """Returns the race of the first store to elements of iterations that all of them read."""
    sets: IndexSets | None = None
    shared = [e for e in loads if all(map(facts.is_uniform, indices_of(e)))]
    for store in stores:
        if store.primitive is STORE and all(map(facts.is_uniform, indices_of(store))):
            continue  # one value that all of them store, as a flag, may be read
        for load in shared:
            if load.invars[0] is store.invars[0]:
                sets = sets or IndexSets(task, AffineForms(task))
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


class _Search:
    """Search for the accesses that every iteration executes, and for the loads that a value is computed from."""

    def __init__(self, task: Task, facts: Uniformity) -> None:
        self._made = definitions(task)
        self._facts = facts

    def always(self, block: Block, conditions: tuple[Atom, ...] = ()) -> Iterator[tuple[Eqn, tuple[Atom, ...]]]:
        """Yields the loads and stores of shared memory, each with the varying conditions that it is under."""
        for eqn in block.eqns:
            prim = eqn.primitive
            if prim in (LOAD, STORE, ACCUM):
                if is_global(eqn.invars[0]):
                    yield eqn, conditions
            elif prim is FOR:
                if trip_count(*eqn.bounds) != 0:
                    yield from self.always(eqn.blocks[0], conditions)
            elif prim is IF:
                differs = not self._facts.is_uniform(eqn.invars[0])
                inner = (*conditions, eqn.invars[0]) if differs else conditions
                for inside in eqn.blocks:
                    yield from self.always(inside, inner)

    def leaves_out_one(self, condition: Atom) -> bool:
        """Returns whether a condition is `i != j`, which holds for all iterations but one."""
        made = self._made.get(condition) if isinstance(condition, Var) else None
        return made is not None and made.primitive.name == "ne" and made.invars[0].dtype.is_integer

    def reads(self, value: Atom, ref: Atom) -> bool:
        """Returns whether a value is computed from a load of `ref` at the same element in all iterations."""
        seen: set[Var] = set()
        work = [value]
        while work:
            atom = work.pop()
            if not isinstance(atom, Var) or atom in seen or atom not in self._made:
                continue
            seen.add(atom)
            eqn = self._made[atom]
            if eqn.primitive is LOAD and eqn.invars[0] is ref:
                if all(map(self._facts.is_uniform, indices_of(eqn))):
                    return True
            elif not eqn.primitive.structured:
                work += eqn.invars
        return False
