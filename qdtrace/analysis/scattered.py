"""Accumulations, or stores, at fixed offsets: which iteration of a task reaches an element, as boxes of elements.

A *piece* is an accumulation on a box of iterations where each index is a constant, or a digit plus or minus a constant,
and each digit is in one index: the elements that it reaches are a box too, and each is reached once, from the iteration
that the inverse says. Wrapped, clamped and guarded accumulations have several pieces.

Along an axis that is reached in steps, as by `2 * i` and `2 * i + 1`, an index is taken apart into the number of the
step and the *remainder*, which is an axis of its own behind those of the array: each piece has one of them.
"""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.piecewise import MOST_STEP, OnBox, Refine, Split, digits_of
from qdtrace.frozen import frozen
from qdtrace.ir.dataflow import reached
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import ACCUM, IF, LOAD, STORE
from qdtrace.ir.program import Var, is_global, ref_type
from qdtrace.ir.walk import definitions, used_vars, walk_all, walk_task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.index.piecewise import Box
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
    """The branches around it whose conditions are not the same on all of the box."""

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
        return Piece(self.site, self.box, (*numbers, *(range(r, r + 1) for r in rests)), inverse, self.guards)


@frozen(eq=False, slots=True)
class Scatter:
    """All that a task does to a reference: accumulations by one operation, at fixed offsets."""

    ref: Var
    op: str
    pieces: tuple[Piece, ...]
    steps: tuple[int, ...]
    """The distance of elements that a piece reaches, along each axis of the array."""

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
        return all(
            any(r.start >= s.stop or s.start >= r.stop for r, s in zip(a.targets, b.targets, strict=True))
            for pieces in self.components().values()
            for a, b in combinations(pieces, 2)
        )

    @property
    def is_all(self) -> bool:
        """True if pieces that are apart reach every element in every run."""
        reached = sum(prod(map(len, p.targets)) for p in self.pieces if not p.guards)
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
        self.makers = definitions(task)
        self.refine: Refine | None = None
        """Digits in which more accumulations may be at fixed offsets."""
        self._scatters: dict[Var, Scatter | None] = {}
        self.sites: dict[Var, list[Site]] = {}
        accesses: dict[Var, int] = {}
        for eqn in walk_task(task):
            if eqn.primitive.is_access and (primitive is ACCUM or eqn.primitive is primitive):
                accesses[reference(eqn)] = accesses.get(reference(eqn), 0) + 1
        for site in _sites(task.body.eqns, (), primitive):
            self.sites.setdefault(reference(site.eqn), []).append(site)
        for ref, sites in [*self.sites.items()]:
            if len(sites) != accesses[ref] or len({s.op for s in sites}) > 1 or not is_global(ref):
                del self.sites[ref]

    def scatters(self, ref: Var) -> Scatter | None:
        """Returns the accumulations into a reference as pieces, or None if one is none at fixed offsets."""
        if ref not in self._scatters:
            self._scatters[ref] = self._found(ref)
        return self._scatters[ref]

    def _found(self, ref: Var) -> Scatter | None:
        pieces: list[Piece] = []
        for site in self.sites[ref]:
            found = self._pieces(site, MOST_PIECES - len(pieces))
            if found is None:
                return None
            pieces += found
        steps = [1] * ref_type(ref).ndim
        for inverse in (i for piece in pieces for i in piece.inverse.values() if i.axis is not None):
            steps[inverse.axis or 0] = max(steps[inverse.axis or 0], abs(inverse.sign))
        apart = [p for piece in pieces if (p := piece.taken_apart(steps)) is not None]
        if not pieces or len(apart) < len(pieces):
            return None
        return Scatter(ref, self.sites[ref][0].op, tuple(apart), tuple(steps))

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
        eqns = walk_all(self.task.body.eqns)
        needed = None if wanted is None else self.needed(wanted)
        found.visit(eqns if needed is None else (e for e in eqns if not needed.isdisjoint(e.outvars)))
        return found

    def _pieces(self, site: Site, most: int) -> list[Piece] | None:
        conditions = [eqn.invars[0] for eqn, _ in site.around]
        wanted = [*indices_of(site.eqn), *conditions]
        work, pieces = [self.box], list[Piece]()
        while work:
            if len(work) + len(pieces) > most:
                return None
            box = work.pop()
            try:
                on = self.on(box, wanted)
                known = [on.of(c) for c in conditions]
                if any(k is (number == 1) for k, (_, number) in zip(known, site.around, strict=True)):
                    continue  # it is in a branch that does not run
                guards = tuple(e for k, (e, _) in zip(known, site.around, strict=True) if k is None)
                piece = _piece(site, on, guards)
            except Split as split:
                work += reversed(split.parts(box))
                continue
            except Refine as refine:
                self.refine = refine
                return None
            if piece is None:
                return None
            pieces.append(piece)
        return pieces


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


def _sites(eqns: Sequence[Eqn], around: tuple[tuple[Eqn, int], ...], primitive: Primitive) -> Iterator[Site]:
    """Yields the equations of a primitive outside of loops."""
    for eqn in eqns:
        if eqn.primitive is primitive:
            yield Site(eqn, around)
        elif eqn.primitive is IF:
            for k, block in enumerate(eqn.blocks):
                yield from _sites(block.eqns, (*around, (eqn, k)), primitive)


def _split_shortest(on: OnBox, form: Form) -> None:
    """Raises Split for the digit of a form that has the fewest values, if these are few."""
    digit = min((d for d in form.terms if isinstance(d, Var)), key=lambda d: len(on.box[d]))
    if len(on.box[digit]) <= SHORT:
        raise Split(digit, on.box[digit].start + 1)


def _piece(site: Site, on: OnBox, guards: tuple[Eqn, ...]) -> Piece | None:
    """Returns the piece of a site on a box; raises Split for a short digit that no index follows."""
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
    return Piece(site, on.box, tuple(targets), inverse, guards)
