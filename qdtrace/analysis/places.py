"""Whether two accesses of one iteration touch the same element of a reference.

A *place* is a reference with one affine form an axis. Within one iteration (of the task and of every loop around both
accesses) a variable has one value, so places with equal forms are the same element, and places whose forms differ by a
number are never the same: `b[i]` and `b[i + 1]`, whatever `i` is. Different references never overlap.

Forms are exact modulo 2**32 and an index is inside of its axis (others are undefined), so for axes of less than 2**32
elements equality of forms modulo 2**32 is equality of indices. References with a longer axis are not looked at.

Nothing here speaks of other iterations, but for `private_references`. A comparison with a place whose variables are all
bound outside of a loop holds for every iteration of that loop: what varies in it is a term or an interval of the other.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from math import gcd
from typing import TYPE_CHECKING

from qdtrace.analysis.accesses import indices_of
from qdtrace.analysis.affine import AffineForms, Form
from qdtrace.analysis.injectivity import Injectivity
from qdtrace.ir.program import Var, ref_type
from qdtrace.ir.types import Space
from qdtrace.ir.walk import walk_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from qdtrace.analysis.affine import Term
    from qdtrace.ir.program import Atom, Block, Eqn, Task

MEMORY = frozenset({"load", "store", "accum", "atomic"})
"""Names of the primitives that touch an element of a reference."""
_WRAP = 1 << 32

Terms = tuple[frozenset[tuple["Term", int]], ...]
Constants = tuple[int, ...]


class Meeting(Enum):
    """How two places of one reference relate inside one iteration."""

    SAME = auto()
    NEVER = auto()
    MAYBE = auto()


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """An element of a reference: for each axis the terms and the constant of the index."""

    ref: Var
    terms: Terms
    constants: Constants
    indices: tuple[Atom, ...]
    """The operands of the access."""

    @property
    def key(self) -> tuple[Var, Terms, Constants]:
        """Equal for places that are the same."""
        return self.ref, self.terms, self.constants

    def variables(self) -> Iterator[Var]:
        """What the indices are computed from."""
        for terms in self.terms:
            for term, _ in terms:
                yield from _variables(term)


def _variables(term: Term) -> Iterator[Var]:
    if isinstance(term, Var):
        yield term
        return
    if isinstance(term.key, Var):
        yield term.key
        return
    for inner, _ in term.key[0]:
        yield from _variables(inner)


class Places:
    """Gives the places of a task's memory equations and compares them."""

    def __init__(self, forms: AffineForms) -> None:
        self.forms = forms

    def of(self, eqn: Eqn) -> Place:
        """The place of a load, store, accumulation or atomic."""
        ref = eqn.invars[0]
        assert isinstance(ref, Var)
        return self.at(ref, indices_of(eqn))

    def at(self, ref: Var, indices: tuple[Atom, ...]) -> Place:
        """The place of an index tuple."""
        forms = [self.forms.of(a) for a in indices]
        terms = tuple([frozenset(f.terms.items()) for f in forms])
        return Place(ref, terms, tuple([f.constant % _WRAP for f in forms]), indices)

    def meet(self, a: Place, b: Place) -> Meeting:
        """Whether two places of one reference are the same element."""
        if a.terms == b.terms:
            return Meeting.SAME if a.constants == b.constants else Meeting.NEVER
        for s, t, c, d in zip(a.terms, b.terms, a.constants, b.constants, strict=True):
            if self._differ(Form(dict(s), c), Form(dict(t), d)):
                return Meeting.NEVER
        return Meeting.MAYBE

    def _differ(self, a: Form, b: Form) -> bool:
        """The two are never equal modulo 2**32."""
        difference = a.plus(b, -1)
        step = gcd(_WRAP, *difference.terms.values())
        if difference.constant % step:
            return True
        bounds = self.forms.bounds(difference)
        # A multiple of 2**32 in the interval would be equality.
        return bounds is not None and bounds[0] // _WRAP == bounds[1] // _WRAP and bool(bounds[0] % _WRAP)


def is_comparable(ref: Var) -> bool:
    """Whether places of the reference can be compared: its axes are shorter than 2**32."""
    return max(ref_type(ref).shape, default=0) < _WRAP


def is_private_memory(ref: Var) -> bool:
    """True for cells and private arrays."""
    return ref_type(ref).space is Space.LOCAL


@dataclass(frozen=True, slots=True)
class References:
    """What a task does to each reference, over all its iterations."""

    private: frozenset[Var]
    """Every element is touched by one iteration at most (always so in a serial task)."""
    tracked: frozenset[Var]
    """What an iteration stored or loaded stays as it is until the iteration itself writes: the reference is private,
    or the task neither accumulates into it nor updates it atomically (anything else would be a race)."""
    modes: dict[Var, frozenset[str]]
    """Names of the primitives used on it; for accumulations the operation."""
    counts: Counter[Var]
    """Number of memory equations."""


def references_of(task: Task, forms: AffineForms) -> References:
    """The facts of a task; linear in its size."""
    accesses: dict[Var, list[Eqn]] = {}
    for eqn in walk_task(task):
        if eqn.primitive.name in MEMORY:
            accesses.setdefault(eqn.invars[0], []).append(eqn)  # type: ignore[arg-type]
    injectivity = Injectivity(task, forms)
    private: set[Var] = set()
    tracked: set[Var] = set()
    modes: dict[Var, frozenset[str]] = {}
    for ref, eqns in accesses.items():
        if not is_comparable(ref):
            continue
        used = modes[ref] = frozenset([_mode(e) for e in eqns])
        if task.index is None or is_private_memory(ref) or _share_a_key(injectivity, eqns):
            private.add(ref)
        if ref in private or used <= {"load", "store"}:
            tracked.add(ref)
    counts = Counter({ref: len(eqns) for ref, eqns in accesses.items()})
    return References(frozenset(private), frozenset(tracked), modes, counts)


def _mode(eqn: Eqn) -> str:
    name = eqn.primitive.name
    return str(eqn.params["op"]) if name == "accum" else name


def _share_a_key(injectivity: Injectivity, eqns: Iterable[Eqn]) -> bool:
    common = None
    for eqn in eqns:
        keys = injectivity.keys(indices_of(eqn))
        common = keys if common is None else common & keys
        if not common:
            return False
    return True


def levels_of(task: Task) -> dict[Var, int]:
    """How many blocks are around each variable: 0 for references, 1 in the head and body of the task."""
    found: dict[Var, int] = {}
    if task.index is not None:
        found[task.index] = 1

    def enter(eqns: Iterable[Eqn], level: int) -> None:
        for eqn in eqns:
            for var in eqn.outvars:
                found[var] = level
            for block in eqn.blocks:
                for param in block.params:
                    found[param] = level + 1
                enter(block.eqns, level + 1)

    enter(task.head, 1)
    enter(task.body.eqns, 1)
    return found


def places_in(places: Places, blocks: Iterable[Block], modes: frozenset[str]) -> dict[Var, list[Place]]:
    """The places, by reference, that equations of those names touch anywhere in the blocks."""
    found: dict[Var, list[Place]] = {}
    pending = list(blocks)
    while pending:
        for eqn in pending.pop().eqns:
            if eqn.primitive.name in modes:
                place = places.of(eqn)
                found.setdefault(place.ref, []).append(place)
            pending += eqn.blocks
    return found

