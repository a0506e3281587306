"""`TaskMemory` describes what a task does to memory: its accesses, and whether two may touch one element.

A *location* is a reference with one affine form an axis. Different references never overlap. Two locations of one
reference are compared at one of three levels, by what varies between the two accesses:

- inside of one iteration, of the task and of every loop around both, a variable has one value: locations of equal keys
  are the same element, and `may_meet` says if others may be. A comparison with a location whose variables are all bound
  outside of a loop holds for every iteration of that loop: values that vary in it are terms or intervals of the other
  location;
- in different iterations of the task, or of a loop: `meet_inside` says that only one iteration touches the element;
- in any iterations of two tasks over one index: `dependence` says in which, by their distance.

Forms are exact modulo 2**32 and an index is inside of its axis (others are undefined), so for axes of less than 2**32
elements equality of forms modulo 2**32 is equality of indices. References with a longer axis are not compared.

An accumulation both reads and writes (`ir/memory.read`, `written`); what may be reordered is asked by mode.
"""

from __future__ import annotations

from functools import cached_property
from itertools import combinations_with_replacement
from math import gcd
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms, Form
from qdtrace.analysis.index.dependence import SAME, IterationSpace, dependence_between
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.analysis.index.trips import task_values
from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, mode_of, reference, touched, written
from qdtrace.ir.program import is_global, is_local, ref_type
from qdtrace.ir.walk import levels_of, walk_all, walk_eqns, walk_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from qdtrace.analysis.index.affine import Term
    from qdtrace.analysis.index.dependence import Dependence
    from qdtrace.analysis.index.injectivity import Key
    from qdtrace.analysis.index.progression import Progression
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Atom, Eqn, Task, Var

_PLAIN = frozenset({"load", "store"})
_LONGEST = 1 << 32
MOST_COMPARED = 24
"""Largest number of different locations of one reference that are compared pair by pair."""

Terms = tuple[frozenset[tuple["Term", int]], ...]
Constants = tuple[int, ...]


@frozen(slots=True, eq=False)
class MemoryLocation:
    """An element of a reference: for each axis the terms and the constant of the index."""

    ref: Var
    terms: Terms
    constants: Constants
    indices: tuple[Atom, ...]
    """The operands of the access."""

    @property
    def key(self) -> tuple[Var, Terms, Constants]:
        """Equal for locations that are the same."""
        return self.ref, self.terms, self.constants

    def variables(self) -> Iterator[Var]:
        """Yields the variables in the affine forms of the indices."""
        for terms in self.terms:
            yield from Form(dict(terms)).variables()


class TaskMemory:
    """The accesses of a task to memory."""

    def __init__(self, task: Task, forms: AffineForms | None = None) -> None:
        self.task = task
        self.forms = forms or AffineForms(task, flips=True)
        self._parts: dict[int, tuple[frozenset[tuple[Term, int]], int, Atom]] = {}
        """Terms and constant of each index, by its `id` since literals are slow to hash; the atom is kept alive."""
        self._injectivity: dict[Eqn | None, Injectivity] = {}
        self._private: dict[Var, bool] = {}
        self._modes: dict[Var, frozenset[str]] = {}

    # Accesses.

    @cached_property
    def accesses(self) -> dict[Var, list[Eqn]]:
        """The memory equations of each reference, those of the head first."""
        found: dict[Var, list[Eqn]] = {}
        for eqn in self.task.all_eqns:
            if eqn.primitive.is_access:
                found.setdefault(reference(eqn), []).append(eqn)
        return found

    @cached_property
    def shared(self) -> dict[Var, list[Eqn]]:
        """The memory equations of the body on each global reference, of those with equal indices and mode the first."""
        found: dict[Var, dict[object, Eqn]] = {}
        for eqn in walk_eqns(self.task.body):
            if eqn.primitive.is_access and is_global(eqn.invars[0]):
                key = mode_of(eqn), *[form.key for form in self.index(eqn)]
                found.setdefault(reference(eqn), {}).setdefault(key, eqn)
        return {ref: list(eqns.values()) for ref, eqns in found.items()}

    @cached_property
    def written(self) -> frozenset[Var]:
        """Global references that the body changes."""
        return frozenset(filter(is_global, written(walk_eqns(self.task.body))))

    @cached_property
    def head_reads(self) -> frozenset[Var]:
        """Global references that the head reads."""
        return frozenset(filter(is_global, touched(walk_all(self.task.head))))

    @cached_property
    def iterations(self) -> Progression | None:
        """The values of the task's index; None if a bound is no constant, the range is empty or the task is serial."""
        values = task_values(self.task)
        return values if self.task.index is not None and values is not None and values.count else None

    @cached_property
    def levels(self) -> dict[Var, int]:
        """The number of blocks around each variable (`ir/walk.levels_of`)."""
        return levels_of(self.task)

    def modes(self, ref: Var) -> frozenset[str]:
        """Returns the modes of all accesses to a reference (`ir/memory.mode_of`)."""
        found = self._modes.get(ref)
        if found is None:
            found = self._modes[ref] = frozenset([mode_of(e) for e in self.accesses[ref]])
        return found

    def is_private(self, ref: Var) -> bool:
        """Returns whether at most one iteration touches each element (always so in a serial task)."""
        found = self._private.get(ref)
        if found is None:
            found = self._private[ref] = is_comparable(ref) and (
                self.task.index is None or is_local(ref) or self.are_apart(self.accesses[ref])
            )
        return found

    @cached_property
    def tracked(self) -> frozenset[Var]:
        """References whose elements keep what an iteration stored or loaded until it writes again: the reference is
        private, or the task neither accumulates into it nor updates it atomically (anything else would be a race)."""
        refs = [r for r in self.accesses if is_comparable(r) and (self.modes(r) <= _PLAIN or self.is_private(r))]
        return frozenset(refs)

    # Locations.

    def index(self, eqn: Eqn) -> tuple[Form, ...]:
        """Returns the forms of the indices of a memory equation."""
        return tuple([self.forms.of(a) for a in indices_of(eqn)])

    def of(self, eqn: Eqn) -> MemoryLocation:
        """Returns the location that a load, store, accumulation or atomic touches."""
        return self.at(reference(eqn), indices_of(eqn))

    def at(self, ref: Var, indices: tuple[Atom, ...]) -> MemoryLocation:
        """Returns the location of a reference at an index tuple."""
        get = self._parts.get
        parts = [get(id(a)) or self._part(a) for a in indices]
        return MemoryLocation(ref, tuple([p[0] for p in parts]), tuple([p[1] for p in parts]), indices)

    def _part(self, index: Atom) -> tuple[frozenset[tuple[Term, int]], int, Atom]:
        form = self.forms.of(index)
        made = self._parts[id(index)] = frozenset(form.terms.items()), form.constant % self.forms.modulus, index
        return made

    def renew(self, var: Var) -> None:
        """Drops the cached form of a variable, to be called when its form has changed."""
        self._parts.pop(id(var), None)

    def inside(self, eqn: Eqn, wanted: Callable[[Primitive], bool]) -> dict[Var, list[MemoryLocation]]:
        """Returns the locations, by reference, that equations of `wanted` primitives inside `eqn` touch."""
        found: dict[Var, list[MemoryLocation]] = {}
        for inner in walk_inside(eqn):
            if wanted(inner.primitive):
                found.setdefault(reference(inner), []).append(self.of(inner))
        return found

    # Comparison.

    def may_meet(self, a: MemoryLocation, b: MemoryLocation) -> bool:
        """Returns whether two locations of one reference may be the same element, as those of equal keys are."""
        if a.terms == b.terms:
            return a.constants == b.constants
        axes = zip(a.terms, b.terms, a.constants, b.constants, strict=True)
        return not any(self._differ(Form(dict(s), c), Form(dict(t), d)) for s, t, c, d in axes)

    def _differ(self, a: Form, b: Form) -> bool:
        """Returns whether two forms surely differ modulo 2**32."""
        difference, wrap = a.plus(b, -1), self.forms.modulus
        step = gcd(wrap, *difference.terms.values())
        if difference.constant % step:
            return True
        bounds = self.forms.bounds(difference)
        # A multiple of the modulus in the interval would be equality.
        return bounds is not None and bounds[0] // wrap == bounds[1] // wrap and bool(bounds[0] % wrap)

    def proofs(self, indices: Sequence[Atom], loop: Eqn | None = None) -> frozenset[Key]:
        """Returns proofs that different iterations of the task, or of a loop, have different indices."""
        found = self._injectivity.get(loop)
        if found is None:
            found = self._injectivity[loop] = Injectivity(self.task, self.forms, loop)
        return found.keys(indices)

    def share_a_proof(self, eqns: Iterable[Eqn], loop: Eqn | None = None) -> bool:
        """Returns whether at most one iteration of the task, or of a loop, touches each element that equations do."""
        common: frozenset[Key] | None = None
        different = {tuple(map(id, indices)): indices for indices in map(indices_of, eqns)}
        for indices in different.values():
            proofs = self.proofs(indices, loop)
            common = proofs if common is None else common & proofs
            if not common:
                return False
        return True

    def are_apart(self, eqns: Collection[Eqn]) -> bool:
        """Returns whether at most one iteration of the task touches each element that equations do: they share a proof,
        or no two of them meet in different iterations, as at `2 * i` and `2 * i + 1`."""
        if self.share_a_proof(eqns):
            return True
        different = {tuple([form.key for form in self.index(e)]): e for e in eqns}
        if len(different) > MOST_COMPARED:
            return False
        return all(self.dependence(a, b).is_safe for a, b in combinations_with_replacement(different.values(), 2))

    def is_apart(self, ref: Var, loop: Eqn) -> bool:
        """Returns whether each element of a reference that a `for` touches is touched in one iteration of it alone."""
        inside = [e for e in walk_inside(loop) if e.primitive.is_access and reference(e) is ref]
        return self.share_a_proof(inside, loop)

    def dependence(self, first: Eqn, second: Eqn, other: TaskMemory | None = None) -> Dependence:
        """Returns the iterations in which two accesses to a reference may touch one element.

        The second access may be in the body of `other`, a task over the same index.
        """
        other = other or self
        if self.task.index is None or self.proofs(indices_of(first)) & other.proofs(indices_of(second)):
            return SAME
        constants = {v for task in (self.task, other.task) for e in task.head for v in e.outvars}
        space = IterationSpace(self.task.index, self.iterations, constants)
        kind = ref_type(reference(first))
        return dependence_between(kind, self.index(first), other.index(second), (self.forms, other.forms), space)


def is_comparable(ref: Var) -> bool:
    """Returns whether locations of the reference can be compared: its axes are shorter than 2**32."""
    return max(ref_type(ref).shape, default=0) < _LONGEST
