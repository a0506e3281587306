"""Accumulations, or stores, at fixed offsets: which iteration of a task reaches an element, as boxes of elements.

A *piece* is an accumulation on a box of iterations where each index is a constant, or a digit plus or minus a constant,
and each digit is in one index: the elements that it reaches are a box too, and each is reached once, from the iteration
that the inverse says. Wrapped, clamped and guarded accumulations have several pieces.

Along an axis that is reached in steps, as by `2 * i` and `2 * i + 1`, an index is taken apart into the number of the
step and the *remainder*, which is an axis of its own behind those of the array: each piece has one of them.

A guard may tell iterations apart by remainders of sums of digits (`index/residues`): a piece then reaches the elements
of one colour of its box. A reference that is also loaded and stored counts if that is at elements of other colours.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.piecewise import MOST_STEP, OnBox, Refine, Split, digits_of
from qdtrace.analysis.index.residues import Residue, congruences, remainders
from qdtrace.frozen import frozen
from qdtrace.ir.dataflow import reached
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, IF, LOAD, STORE
from qdtrace.ir.program import Var, is_global, ref_type
from qdtrace.ir.walk import used_vars, walk_all

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.index.piecewise import Box
    from qdtrace.analysis.index.residues import Congruence
    from qdtrace.ir.primitives import Primitive
    from qdtrace.ir.program import Atom, Eqn, Task

MOST_PIECES = 128
"""Largest number of pieces of one reference."""
SHORT = 8
"""Digits of at most so many values are split into them where no index follows the digit."""
MOST_REFINED = 3
"""Most digits, one an axis, that are taken apart once more."""


@frozen(eq=False, slots=True)
class Site:
    """An accumulation, or a store, with the branches around it, outermost first."""

    eqn: Eqn
    around: tuple[tuple[Eqn, int], ...]
    """Each `if` around it, with the number of the block."""

    @property
    def op(self) -> str:
        """The operation of an accumulation; nothing for a store."""
        return self.eqn.params.get("op", "")


@frozen(slots=True)
class Inverse:
    """A digit from the element that its iteration reaches: `sign * (index along the axis - constant)`.

    Before steps are taken apart, the index along the axis is `sign * digit + constant`, with a larger sign.
    """

    axis: int | None
    """None for a digit that has one value on the box."""
    sign: int
    constant: int

    def values(self, targets: Mapping[int, range]) -> range | None:
        """Returns the values of the digit in iterations that reach the targets along each axis; None if it has one."""
        if self.axis is None:
            return None
        along = targets[self.axis]
        ends = [self.sign * (k - self.constant) for k in (along[0], along[-1])]
        return range(min(ends), max(ends) + 1)


@frozen(eq=False, slots=True)
class Piece:
    """A site on a box of iterations, and the box of elements that it reaches."""

    site: Site
    box: Box
    targets: tuple[range, ...]
    """The elements, along each axis."""
    inverse: dict[Var, Inverse]
    guards: tuple[Eqn, ...]
    """The branches around it whose conditions are not the same on all of the box, and say more than `residues`."""
    residues: tuple[Residue, ...] = ()
    """The colours of all the elements."""

    def is_apart_from(self, other: Piece) -> bool:
        """Returns whether no element is reached by both."""
        return any(
            r.start >= s.stop or s.start >= r.stop for r, s in zip(self.targets, other.targets, strict=True)
        ) or any(r.excludes(s) for r in self.residues for s in other.residues)

    def coloured(self, families: Iterable[tuple[tuple[int, ...], int]]) -> Piece:
        """Returns the piece with its colours by the factors of other pieces, where it has one index along an axis."""
        found = dict.fromkeys(self.residues)
        for factors, modulus in families:
            for own in (*self.residues, Residue((0,) * len(factors), modulus, 0)):
                more = [(f - g) % modulus for f, g in zip(factors, own.factors, strict=True)]
                is_known = any(own.factors) or any(more)
                if own.modulus == modulus and is_known and all(
                    len(t) == 1 or not f for t, f in zip(self.targets, more, strict=True)
                ):
                    found.pop(own, None)
                    rest = sum(f * t.start for t, f in zip(self.targets, more, strict=True))
                    found[Residue(factors, modulus, (own.remainder + rest) % modulus)] = None
                    break
        return replace(self, residues=tuple(found))

    def taken_apart(self, steps: Sequence[int]) -> Piece | None:
        """Returns the piece over numbers of steps and remainders; None if it reaches elements in other steps."""
        if any(i.axis is not None and abs(i.sign) != steps[i.axis] for i in self.inverse.values()):
            return None
        if max(steps, default=1) == 1:
            return self
        numbers = tuple(range(t.start // n, t[-1] // n + 1) for t, n in zip(self.targets, steps, strict=True))
        rests = (t.start % n for t, n in zip(self.targets, steps, strict=True) if n > 1)
        inverse = {
            d: i if i.axis is None else Inverse(i.axis, 1 if i.sign > 0 else -1, i.constant // steps[i.axis])
            for d, i in self.inverse.items()
        }
        return replace(self, targets=(*numbers, *(range(r, r + 1) for r in rests)), inverse=inverse)


@frozen(eq=False, slots=True)
class Scatter:
    """All that a task does to a reference: accumulations by one operation, at fixed offsets."""

    ref: Var
    op: str
    pieces: tuple[Piece, ...]
    steps: tuple[int, ...]
    """The distance of elements that a piece reaches, along each axis of the array."""
    is_all_there_is: bool = True
    """False if the task also loads or stores elements that no piece reaches."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The numbers of steps along each axis of the array, and of remainders along those with steps."""
        whole = (-(-size // n) for size, n in zip(ref_type(self.ref).shape, self.steps, strict=True))
        return (*whole, *(n for n in self.steps if n > 1))

    @property
    def full(self) -> tuple[int, ...]:
        """The numbers of steps along each axis of the array that have all remainders."""
        return tuple(size // n for size, n in zip(ref_type(self.ref).shape, self.steps, strict=True))

    @property
    def component_axes(self) -> tuple[int, ...]:
        """Axes along which every piece has a constant index."""
        return tuple(
            axis
            for axis in range(len(self.shape))
            if all(len(p.targets[axis]) == 1 for p in self.pieces)
            and not any(i.axis == axis for p in self.pieces for i in p.inverse.values())
        )

    @property
    def element_axes(self) -> tuple[int, ...]:
        """The other axes."""
        components = self.component_axes
        return tuple(axis for axis in range(len(self.shape)) if axis not in components)

    @property
    def is_apart(self) -> bool:
        """True if no two pieces reach one element."""
        return all(a.is_apart_from(b) for pieces in self.components().values() for a, b in combinations(pieces, 2))

    def leaves(self, other: Piece) -> bool:
        """Returns whether the elements of another access have other colours, or are other components."""
        axes = self.component_axes
        return all(
            any(piece.targets[axis] != other.targets[axis] and len(other.targets[axis]) == 1 for axis in axes)
            or any(r.excludes(s) for r in piece.residues for s in other.residues)
            for piece in self.pieces
        )

    @property
    def is_all(self) -> bool:
        """True if pieces that are apart reach every element in every run."""
        reached = sum(prod(map(len, p.targets)) for p in self.pieces if not (p.guards or p.residues))
        return reached == ref_type(self.ref).size

    def components(self) -> dict[tuple[int, ...], list[Piece]]:
        """Returns the pieces by their indices along the axes of components."""
        found: dict[tuple[int, ...], list[Piece]] = {}
        axes = self.component_axes
        for piece in self.pieces:
            found.setdefault(tuple(piece.targets[a].start for a in axes), []).append(piece)
        return found


class ScatteringTask:
    """A task whose accumulations at fixed offsets are found; or its stores, beside whatever else it accesses."""

    def __init__(self, task: Task, index: Form, box: Box, primitive: Primitive = ACCUM) -> None:
        self.task = task
        self.index = index
        """The index of the task as a form of its digits."""
        self.box = box
        self.makers = task.definitions
        self.refine: Refine | None = None
        """Digits in which more accumulations may be at fixed offsets."""
        self._scatters: dict[Var, Scatter | None] = {}
        self.sites: dict[Var, list[Site]] = {}
        self._others: dict[Var, list[Site]] = {}
        """Loads and stores of the references that a task also accumulates into."""
        accesses: dict[Var, int] = {}
        for eqn in task.all_eqns:
            if eqn.primitive.is_access and (primitive is ACCUM or eqn.primitive is primitive):
                accesses[reference(eqn)] = accesses.get(reference(eqn), 0) + 1
        for site in _sites(task.body.eqns, ()):
            kind = site.eqn.primitive
            if kind is primitive or (primitive is ACCUM and kind in {LOAD, STORE}):
                at = self.sites if kind is primitive else self._others
                at.setdefault(reference(site.eqn), []).append(site)
        for ref, sites in [*self.sites.items()]:
            found = len(sites) + len(self._others.get(ref, ()))
            if found != accesses[ref] or len({s.op for s in sites}) > 1 or not is_global(ref):
                del self.sites[ref]

    def scatters(self, ref: Var) -> Scatter | None:
        """Returns the accumulations into a reference as pieces, or None if one is none at fixed offsets."""
        if ref not in self._scatters:
            self._scatters[ref] = self._found(ref)
        return self._scatters[ref]

    def _found(self, ref: Var) -> Scatter | None:
        sites, others = self.sites[ref], self._others.get(ref, [])
        pieces = self._pieces_of(sites)
        beside = None if pieces is None else self._pieces_of(others)
        if not pieces or beside is None:
            return None
        steps = [1] * ref_type(ref).ndim
        for inverse in (i for piece in pieces for i in piece.inverse.values() if i.axis is not None):
            steps[inverse.axis or 0] = max(steps[inverse.axis or 0], abs(inverse.sign))
        families = {(r.factors, r.modulus): None for piece in (*pieces, *beside) for r in piece.residues}
        pieces, beside = ([p.coloured(families) for p in some] for some in (pieces, beside))
        apart, around = ([p for q in some if (p := q.taken_apart(steps)) is not None] for some in (pieces, beside))
        if len(apart) < len(pieces) or len(around) < len(beside):
            return None
        scatter = Scatter(ref, sites[0].op, tuple(apart), tuple(steps), not others)
        return scatter if all(map(scatter.leaves, around)) else None

    def scatters_again(self, scatter: Scatter) -> Scatter:
        """Returns the scatter of another form of the task, with other values at the same indices, in this one."""
        found = self.scatters(scatter.ref)
        assert found is not None, f"accumulations into {scatter.ref} have the same indices"
        return found

    def needed(self, wanted: Iterable[Atom]) -> set[Var]:
        """Returns the variables that atoms are computed from, in the body or its head."""
        read: set[Eqn] = set()

        def used(var: Var) -> Iterable[Var]:
            eqn = self.makers.get(var)
            if eqn is None or eqn in read:  # a loop with many results is read once
                return ()
            read.add(eqn)
            return used_vars(eqn)

        return reached([a for a in wanted if isinstance(a, Var)], used)

    def on(self, box: Box, wanted: Iterable[Atom] | None = None) -> OnBox:
        """Returns the integers of the body on a box. Raises Split where `wanted` atoms have no single form there."""
        assert self.task.index is not None
        found = OnBox(box, {self.task.index: self.index}, may_split=wanted is not None)
        found.visit(walk_all(self.task.body.eqns) if wanted is None else self._makers_of(wanted))
        return found

    def _pieces_of(self, sites: Iterable[Site]) -> list[Piece] | None:
        """Returns the pieces of all sites, or None if one has none or they are too many."""
        pieces: list[Piece] = []
        for site in sites:
            found = self._pieces(site, MOST_PIECES - len(pieces))
            if found is None:
                return None
            pieces += found
        return pieces

    def _pieces(self, site: Site, most: int) -> list[Piece] | None:
        """Returns the pieces of a site. What is asked of the remainder of one digit may make two digits of it, else it
        is left to residues, as what is asked of the remainder of a sum is."""
        conditions = [eqn.invars[0] for eqn, _ in site.around]
        parts = [part for c in conditions for part in remainders(c, self.makers)]
        divided = [part for whole, part in parts if whole is not part]
        try:
            if not divided or not self._is_sum(divided):
                found = self._on_boxes(site, most, conditions)
                if found is not None or not divided:
                    return found
        except Refine as refine:
            if refine.applied(self.index, self.box) is not None or not divided:
                self.refine = refine
                return None
        try:
            return self._on_boxes(site, most, [part for _, part in parts])
        except Refine as refine:  # by an index
            self.refine = refine
            return None

    def _is_sum(self, divided: Iterable[Atom]) -> bool:
        """Returns whether one of some integers is a sum of digits of many values."""
        on = self.on(self.box)
        forms = [form for a in divided if (form := on.form(a)) is not None]
        return any(sum(len(self.box[d]) > MOST_STEP for d in form.terms if isinstance(d, Var)) > 1 for form in forms)

    def _on_boxes(self, site: Site, most: int, decided: Sequence[Atom]) -> list[Piece] | None:
        """Returns the pieces of a site on boxes where the indices, and what is to be `decided`, have one form each.
        Raises Refine where other digits are better."""
        conditions = [eqn.invars[0] for eqn, _ in site.around]
        wanted = [*indices_of(site.eqn), *decided]
        work, pieces = [self.box], list[Piece]()
        while work:
            if len(work) + len(pieces) > most:
                return None
            box = work.pop()
            try:
                on = self.on(box, wanted)
                if decided != conditions:  # these follow from the parts, as far as they are known
                    on.may_split = False
                    on.visit(self._makers_of(conditions))
                known = [on.of(c) for c in conditions]
                if any(k is (number == 1) for k, (_, number) in zip(known, site.around, strict=True)):
                    continue  # it is in a branch that does not run
                unknown = [a for k, a in zip(known, site.around, strict=True) if k is None]
                piece = _piece(site, on, unknown, self.makers)
            except Split as split:
                work += reversed(split.parts(box))
                continue
            if piece is None:
                return None
            pieces.append(piece)
        return pieces

    def _makers_of(self, wanted: Iterable[Atom]) -> Iterator[Eqn]:
        """Yields the equations of the body that atoms are computed by."""
        needed = self.needed(wanted)
        return (e for e in walk_all(self.task.body.eqns) if not needed.isdisjoint(e.outvars))


def scattering(task: Task) -> ScatteringTask | None:
    """Returns a task with its accumulations at fixed offsets, or None if it has none or its range is not constant."""
    if not any(e.primitive is ACCUM and is_global(e.invars[0]) for e in walk_all(task.body.eqns)):
        return None
    digits = digits_of(task)
    if digits is None:
        return None
    found = ScatteringTask(task, *digits)
    for _ in range(MOST_REFINED):
        for ref in found.sites:
            found.scatters(ref)
        finer = found.refine and found.refine.applied(found.index, found.box)
        if finer is None:
            break
        found = ScatteringTask(task, *finer)
    return found


def stores_are_apart(task: Task, ref: Var) -> bool:
    """Returns whether all stores to a reference are at fixed offsets and no two of them at one element."""
    found = digits_of(task)
    stores = None if found is None else ScatteringTask(task, *found, STORE)
    scatter = stores.scatters(ref) if stores is not None and ref in stores.sites else None
    return scatter is not None and scatter.is_apart


def reads_before_writes(found: ScatteringTask, loads: Iterable[Eqn]) -> bool:
    """Returns whether loads that run before a task find what they find in it: no write in front of one, in the same
    iteration, is to its element."""
    writes: dict[Var, list[tuple[int, Eqn]]] = {}
    places: dict[Eqn, tuple[int, bool]] = {}
    for k, (eqn, in_loop) in enumerate(_with_loops(found.task.body.eqns, False)):
        if eqn.primitive.writes:
            writes.setdefault(reference(eqn), []).append((k, eqn))
        elif eqn.primitive is LOAD:
            places[eqn] = k, in_loop
    on = found.on(found.box)
    for load in loads:
        if reference(load) in writes and load in places:
            place, in_loop = places[load]
            before = [write for k, write in writes[reference(load)] if k < place]
            if in_loop or not all(_are_apart(on, load, write) for write in before):
                return False
    return True


def _are_apart(on: OnBox, a: Eqn, b: Eqn) -> bool:
    """Returns whether two accesses of an iteration are known to be to different elements."""
    for first, second in zip(indices_of(a), indices_of(b), strict=True):
        forms = on.form(first), on.form(second)
        if forms[0] is not None and forms[1] is not None:
            low, high = on.bounds(forms[0].plus(forms[1], -1))
            if low > 0 or high < 0:
                return True
    return False


def _with_loops(eqns: Sequence[Eqn], in_loop: bool) -> Iterator[tuple[Eqn, bool]]:
    for eqn in eqns:
        yield eqn, in_loop
        for block in eqn.blocks:
            yield from _with_loops(block.eqns, in_loop or eqn.primitive.loops)


def _sites(eqns: Sequence[Eqn], around: tuple[tuple[Eqn, int], ...]) -> Iterator[Site]:
    """Yields the accesses outside of loops."""
    for eqn in eqns:
        if eqn.primitive.is_access:
            yield Site(eqn, around)
        elif eqn.primitive is IF:
            for k, block in enumerate(eqn.blocks):
                yield from _sites(block.eqns, (*around, (eqn, k)))


def _split_shortest(on: OnBox, form: Form) -> None:
    """Raises Split for the digit of a form that has the fewest values, if these are few."""
    digit = min((d for d in form.terms if isinstance(d, Var)), key=lambda d: len(on.box[d]))
    if len(on.box[digit]) <= SHORT:
        raise Split(digit, on.box[digit].start + 1)


def _piece(
    site: Site, on: OnBox, unknown: Sequence[tuple[Eqn, int]], makers: Mapping[Var, Eqn]
) -> Piece | None:
    """Returns the piece of a site on a box, on which branches around it are `unknown`; raises Split for a short digit
    that no index follows."""
    targets: list[range] = []
    inverse: dict[Var, Inverse] = {}
    for axis, (atom, size) in enumerate(zip(indices_of(site.eqn), ref_type(reference(site.eqn)).shape, strict=True)):
        form = on.form(atom)
        if form is None:
            return None
        if len(form.terms) > 1:
            _split_shortest(on, form)
            return None
        low, high = on.bounds(form)
        if low < 0 or high >= size:
            return None  # undefined where it runs, and a guard may say that it does not
        step = max(map(abs, form.terms.values()), default=1)
        targets.append(range(low, high + 1, step))
        for digit, sign in form.terms.items():
            if not isinstance(digit, Var) or step > MOST_STEP or digit in inverse:
                return None
            inverse[digit] = Inverse(axis, sign, form.constant)
    for digit, values in on.box.items():
        if digit not in inverse:
            if 1 < len(values) <= SHORT:
                raise Split(digit, values.start + 1)
            if len(values) > 1:
                return None
            inverse[digit] = Inverse(None, 1, values.start)
    guards: list[Eqn] = []
    residues: dict[Residue, None] = {}
    for eqn, number in unknown:
        found, is_all = congruences(eqn.invars[0], number == 0, makers, on)
        made = [r for one in found if (r := _residue(one, inverse, len(targets))) is not None]
        residues.update(dict.fromkeys(made))
        if not is_all or len(made) < len(found):
            guards.append(eqn)
    return Piece(site, on.box, tuple(targets), inverse, tuple(guards), tuple(residues))


def _residue(one: Congruence, inverse: Mapping[Var, Inverse], ndim: int) -> Residue | None:
    """Returns what a condition on an iteration says about the element that it reaches; None if it is in steps."""
    factors, rest = [0] * ndim, one.remainder - one.form.constant
    for digit, factor in one.form.terms.items():
        found = inverse[digit] if isinstance(digit, Var) else None
        if found is None or found.axis is None or abs(found.sign) != 1:
            return None
        factors[found.axis] += factor * found.sign
        rest += factor * found.sign * found.constant
    reduced = tuple(f % one.modulus for f in factors)
    return Residue(reduced, one.modulus, rest % one.modulus) if any(reduced) else None
