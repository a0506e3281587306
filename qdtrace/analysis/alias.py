"""Alias analysis: decides if two accesses of one iteration touch the same element of a reference.

A *location* is a reference with one affine form an axis. Within one iteration (of the task and of every loop around
both accesses) a variable has one value, so locations with equal forms are the same element, and locations whose forms
differ by a number are never the same: `b[i]` and `b[i + 1]`, whatever `i` is. Different references never overlap.

Forms are exact modulo 2**32 and an index is inside of its axis (others are undefined), so for axes of less than 2**32
elements equality of forms modulo 2**32 is equality of indices. References with a longer axis are not compared.

All facts but `References` are about one iteration. A comparison with a location whose variables are all bound outside
of a loop holds for every iteration of that loop: values that vary in it are terms or intervals of the other location.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from math import gcd
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms, Form
from qdtrace.analysis.index.injectivity import Injectivity
from qdtrace.ir.memory import indices_of, mode_of
from qdtrace.ir.program import Var, is_local, ref_type
from qdtrace.ir.walk import blocks_of, walk_inside, walk_nested, walk_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from qdtrace.analysis.index.affine import Term
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Atom, Eqn, Task

_PLAIN = frozenset({"load", "store"})
_LONGEST = 1 << 32

Terms = tuple[frozenset[tuple["Term", int]], ...]
Constants = tuple[int, ...]


class Alias(Enum):
    """Relation of two locations of one reference inside one iteration."""

    MUST = auto()
    NO = auto()
    MAY = auto()


@dataclass(frozen=True, slots=True, eq=False)
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


class AliasAnalysis:
    """Computes the locations of a task's memory equations and compares them."""

    def __init__(self, forms: AffineForms) -> None:
        self.forms = forms
        self._parts: dict[int, tuple[frozenset[tuple[Term, int]], int, Atom]] = {}
        """Terms and constant of each index, by its `id` since literals are slow to hash; the atom is kept alive."""

    def of(self, eqn: Eqn) -> MemoryLocation:
        """Returns the location that a load, store, accumulation or atomic touches."""
        ref = eqn.invars[0]
        assert isinstance(ref, Var)
        return self.at(ref, indices_of(eqn))

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

    def alias(self, a: MemoryLocation, b: MemoryLocation) -> Alias:
        """Returns whether two locations of one reference are the same element: always, never or perhaps."""
        if a.terms == b.terms:
            return Alias.MUST if a.constants == b.constants else Alias.NO
        for s, t, c, d in zip(a.terms, b.terms, a.constants, b.constants, strict=True):
            if self._differ(Form(dict(s), c), Form(dict(t), d)):
                return Alias.NO
        return Alias.MAY

    def _differ(self, a: Form, b: Form) -> bool:
        """Returns whether two forms surely differ modulo 2**32."""
        difference, wrap = a.plus(b, -1), self.forms.modulus
        step = gcd(wrap, *difference.terms.values())
        if difference.constant % step:
            return True
        bounds = self.forms.bounds(difference)
        # A multiple of the modulus in the interval would be equality.
        return bounds is not None and bounds[0] // wrap == bounds[1] // wrap and bool(bounds[0] % wrap)


def is_comparable(ref: Var) -> bool:
    """Returns whether locations of the reference can be compared: its axes are shorter than 2**32."""
    return max(ref_type(ref).shape, default=0) < _LONGEST


class References:
    """The accesses of a task to each reference, and facts about them that hold over all iterations."""

    def __init__(self, task: Task, forms: AffineForms) -> None:
        self.accesses: dict[Var, list[Eqn]] = {}
        """The memory equations of each reference."""
        for eqn in walk_task(task):
            if eqn.primitive.is_access:
                self.accesses.setdefault(eqn.invars[0], []).append(eqn)  # type: ignore[arg-type]
        self._injectivity = Injectivity(task, forms)
        self._is_serial = task.index is None
        self._private: dict[Var, bool] = {}
        self._modes: dict[Var, frozenset[str]] = {}
        self.tracked = frozenset(ref for ref in self.accesses if self._is_tracked(ref))
        """References whose elements keep what an iteration stored or loaded until it writes again: the reference is
        private, or the task neither accumulates into it nor updates it atomically (anything else would be a race)."""

    def _is_tracked(self, ref: Var) -> bool:
        return is_comparable(ref) and (self.modes(ref) <= _PLAIN or self.is_private(ref))

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
            found = is_comparable(ref) and (
                self._is_serial or is_local(ref) or _share_a_key(self._injectivity, self.accesses[ref])
            )
            self._private[ref] = found
        return found


def _share_a_key(injectivity: Injectivity, eqns: Iterable[Eqn]) -> bool:
    common = None
    different = {tuple(map(id, indices)): indices for indices in map(indices_of, eqns)}
    for indices in different.values():
        keys = injectivity.keys(indices)
        common = keys if common is None else common & keys
        if not common:
            return False
    return True


def levels_of(task: Task) -> dict[Var, int]:
    """Returns how many blocks enclose each variable: 1 in head and body; references from outside have no entry."""
    found: dict[Var, int] = {} if task.index is None else {task.index: 1}
    for block in blocks_of(task):
        for eqn, around in walk_nested(block):
            found.update(dict.fromkeys(eqn.outvars, len(around) + 1))
            for inner in eqn.blocks:
                found.update(dict.fromkeys(inner.params, len(around) + 2))
    return found


def locations_in(
    aliases: AliasAnalysis, eqn: Eqn, wanted: Callable[[Primitive], bool]
) -> dict[Var, list[MemoryLocation]]:
    """Returns the locations, by reference, that equations of `wanted` primitives inside `eqn` touch."""
    found: dict[Var, list[MemoryLocation]] = {}
    for inner in walk_inside(eqn):
        if wanted(inner.primitive):
            location = aliases.of(inner)
            found.setdefault(location.ref, []).append(location)
    return found
