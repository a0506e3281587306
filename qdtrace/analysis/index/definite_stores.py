"""References whose every element surely holds a value when a task starts, so that a load cannot read unset memory.

Parameters are filled by the caller, buffers with an initial value by the runtime. Any other buffer is full after the
first task that surely stores every element. The proof: stores in no branch and in no loop that may not run; the
row-major element numbers of each, as sums of digits of the indices, are a few arithmetic progressions; and those of all
stores together are as many as the buffer has elements. So `3 * i`, `3 * i + 1` and `3 * i + 2` fill a buffer, and
`4 * i + k`, with `k` of three values, and `4 * i + 3`.

An element number is its form modulo 2**32 and inside of the buffer, so a number of the progression that is inside of
a buffer of at most 2**32 elements is the element that is stored.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms
from qdtrace.analysis.index.boxes import union_size
from qdtrace.analysis.index.footprint import IndexSets
from qdtrace.analysis.index.trips import surely_runs, task_values
from qdtrace.ir.memory import reference
from qdtrace.ir.primitives import FOR, STORE
from qdtrace.ir.program import Literal, Var, is_global, ref_type

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from qdtrace.ir.program import Eqn, Program, Task

_PIECES = 1024
"""Largest number of progressions that the elements of one store are split into."""


class StoredBefore:
    """Definite stores of one program: the references whose elements all hold a value before each task."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._from: dict[Var, int] | None = None
        """Number of the first task before which every element of the reference holds a value."""
        self._position: dict[Task, int] = {}

    def find(self, task: Task, ref: Var) -> bool:
        """Returns whether every element of `ref` holds a value before `task` of the program."""
        if self._from is None:
            self._from = self._search()
        start = self._from.get(ref)
        return start is not None and start <= self._position.get(task, 0)

    def _search(self) -> dict[Var, int]:
        program = self._program
        found = dict.fromkeys((*program.params, *program.initial), 0)
        for number, task in enumerate(program.tasks):
            self._position[task] = number
            for ref in filled_by(task, found):
                found[ref] = number + 1
        return found


@lru_cache(maxsize=2)
def stored_before(program: Program) -> StoredBefore:
    """Returns the definite stores of a program. Passes ask task by task, so the last two programs are cached."""
    return StoredBefore(program)


class FullBefore:
    """Container of the references whose elements all hold a value before one task."""

    def __init__(self, program: Program, task: Task) -> None:
        self._facts = stored_before(program)
        self._task = task

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, Var) and self._facts.find(self._task, ref)


def filled_by(task: Task, known: Container[Var] = ()) -> set[Var]:
    """Returns the references outside of `known` whose every element a task surely stores."""
    values = task_values(task)
    if values is None or not values.count:
        return set()
    stores: dict[Var, list[Eqn]] = {}
    for eqn in _sure_stores(task.body.eqns):
        ref = eqn.invars[0]
        if isinstance(ref, Var) and ref not in known:
            stores.setdefault(ref, []).append(eqn)
    if not stores:
        return set()
    sets = IndexSets(task, AffineForms(task))
    return {ref for ref, eqns in stores.items() if _are_all(ref, eqns, sets)}


def fills(task: Task, accesses: Iterable[Eqn]) -> bool:
    """Returns whether accesses to one reference, each in no branch, together reach every element of it."""
    return _are_all(reference(next(iter(accesses))), accesses, IndexSets(task, AffineForms(task)))


def _sure_stores(eqns: Iterable[Eqn]) -> Iterator[Eqn]:
    """Yields the stores to shared memory that each iteration executes."""
    for eqn in eqns:
        if eqn.primitive is STORE and is_global(eqn.invars[0]):
            yield eqn
        elif eqn.primitive is FOR and surely_runs(eqn):
            yield from _sure_stores(eqn.blocks[0].eqns)


def _are_all(ref: Var, stores: Iterable[Eqn], sets: IndexSets) -> bool:
    """Returns whether the stores reach every element of the reference."""
    kind = ref_type(ref)
    if not 0 < kind.size <= sets.forms.modulus:
        return False
    pieces = [p.clipped(kind.size) for eqn in stores for p in sets.elements(kind, eqn.invars[2:], _PIECES)]
    return union_size([(p,) for p in pieces]) == kind.size


def fill_of(task: Task) -> dict[Var, Literal] | None:
    """Returns the constant that a task stores in all elements of each reference, or None if it does anything else."""
    if any(eqn.blocks or eqn.primitive.effects for eqn in task.head):
        return None
    values: dict[Var, Literal] = {}
    return values if _only_stores(task.body.eqns, values) and values and filled_by(task) == values.keys() else None


def _only_stores(eqns: Iterable[Eqn], values: dict[Var, Literal]) -> bool:
    """Returns whether equations only store one constant per reference, in loops that run; records it in `values`."""
    for eqn in eqns:
        if eqn.primitive is STORE:
            ref, value = eqn.invars[:2]
            if not (isinstance(ref, Var) and is_global(ref) and isinstance(value, Literal)):
                return False
            if values.setdefault(ref, value) != value:
                return False
        elif eqn.primitive is FOR and not eqn.outvars and surely_runs(eqn):
            if not _only_stores(eqn.blocks[0].eqns, values):
                return False
        elif eqn.blocks or eqn.primitive.effects:
            return False
    return True
