"""Accumulations, or stores, at fixed offsets: which iteration of a task reaches an element, as boxes of elements.

A *piece* is an accumulation on a box of iterations where each index is a constant, or a digit plus or minus a constant,
and each digit is in one index: the elements that it reaches are a box too, and each is reached once, from the iteration
that the inverse says. Wrapped, clamped and guarded accumulations have several pieces.
"""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.piecewise import OnBox, Split, digits_of
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
SHORT = 4
"""Digits of at most so many values are split into them where no index follows the digit."""


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
    """A digit from the element that its iteration reaches: `sign * (index along the axis - constant)`."""

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


@frozen(eq=False, slots=True)
class Scatter:
    """All that a task does to a reference: accumulations by one operation, at fixed offsets."""

    ref: Var
    op: str
    pieces: tuple[Piece, ...]

    @property
    def component_axes(self) -> tuple[int, ...]:
        """Axes along which every piece has a constant index."""
        return tuple(
            axis
            for axis in range(ref_type(self.ref).ndim)
            if all(len(p.targets[axis]) == 1 for p in self.pieces)
            and not any(i.axis == axis for p in self.pieces for i in p.inverse.values())
        )

    @property
    def element_axes(self) -> tuple[int, ...]:
        """The other axes."""
        components = self.component_axes
        return tuple(axis for axis in range(ref_type(self.ref).ndim) if axis not in components)

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
        pieces: list[Piece] = []
        for site in self.sites[ref]:
            found = self._pieces(site, MOST_PIECES - len(pieces))
            if found is None:
                return None
            pieces += found
        return Scatter(ref, self.sites[ref][0].op, tuple(pieces)) if pieces else None

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
            if piece is None:
                return None
            pieces.append(piece)
        return pieces


def scattering(task: Task) -> ScatteringTask | None:
    """Returns a task with its accumulations at fixed offsets, or None if it has none or its range is not constant."""
    if not any(e.primitive is ACCUM and is_global(e.invars[0]) for e in walk_all(task.body.eqns)):
        return None
    found = digits_of(task)
    return None if found is None else ScatteringTask(task, *found)


def stores_are_apart(task: Task, ref: Var) -> bool:
    """Returns whether all stores to a reference are at fixed offsets and no two of them at one element."""
    found = digits_of(task)
    stores = None if found is None else ScatteringTask(task, *found, STORE)
    scatter = stores.scatters(ref) if stores is not None and ref in stores.sites else None
    return scatter is not None and scatter.is_apart


def reads_before_writes(task: Task, loads: Iterable[Eqn]) -> bool:
    """Returns whether loads that run before a task find what they find in it: each precedes all writes there."""
    first: dict[Var, int] = {}
    places: dict[Eqn, tuple[int, bool]] = {}
    for k, (eqn, in_loop) in enumerate(_with_loops(task.body.eqns, False)):
        if eqn.primitive.writes:
            first.setdefault(reference(eqn), k)
        elif eqn.primitive is LOAD:
            places[eqn] = k, in_loop
    for load in loads:
        if reference(load) in first and load in places:
            place, in_loop = places[load]
            if in_loop or place > first[reference(load)]:
                return False
    return True


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


def _piece(site: Site, on: OnBox, guards: tuple[Eqn, ...]) -> Piece | None:
    """Returns the piece of a site on a box; raises Split for a short digit that no index follows."""
    targets: list[range] = []
    inverse: dict[Var, Inverse] = {}
    for axis, (atom, size) in enumerate(zip(indices_of(site.eqn), ref_type(reference(site.eqn)).shape, strict=True)):
        form = on.form(atom)
        if form is None or len(form.terms) > 1:
            return None
        low, high = on.bounds(form)
        if low < 0 or high >= size:
            return None  # undefined where it runs, and a guard may say that it does not
        targets.append(range(low, high + 1))
        for digit, sign in form.terms.items():
            if not isinstance(digit, Var) or sign not in (1, -1) or digit in inverse:
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
