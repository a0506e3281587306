"""Footprints: bounds on the number of elements of an array that a set of accesses touches.

An access inside static loops touches a *box*: on each axis an arithmetic progression. Boxes are joined exactly
(stencils overlap, components of a vector do not). Index variables are taken apart into digits where the program divides
them (`f // 32` and `f % 32` become two independent variables), so a flat range over two axes is a box as well. What is
not affine may be anywhere on its axis.
"""

from __future__ import annotations

from dataclasses import field
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import Form, Quotient
from qdtrace.analysis.index.boxes import union_size
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.mixed_radix import MixedRadix, all_values, distinct_values, values_of
from qdtrace.analysis.index.progression import Progression
from qdtrace.analysis.index.trips import loop_values
from qdtrace.frozen import frozen, mutable
from qdtrace.ir.primitives import FOR
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from qdtrace.analysis.index.affine import AffineForms
    from qdtrace.analysis.index.mixed_radix import Digit
    from qdtrace.ir.program import Atom, Task
    from qdtrace.ir.types import RefType


@frozen(slots=True)
class Box:
    """The elements that one access touches over all iterations: at most all in the product of `spans`."""

    spans: tuple[Progression, ...]
    known: bool
    """True if the access touches exactly the elements in `spans`."""
    fewest: int
    most: int
    shift: object = ()
    """Task constants in the indices; boxes of different shifts may or may not overlap."""
    place: object = ()
    """Keys of the indices if the box is not `known`: other indices within the same spans may be other elements."""


@mutable
class Elements:
    """The elements of one reference that some accesses touch."""

    ref: RefType
    boxes: dict[Box, bool] = field(default_factory=dict[Box, bool])
    """The boxes of the accesses, each with whether it is sure to be touched."""

    def add(self, box: Box, sure: bool) -> None:
        """Adds the box of one access."""
        self.boxes[box] = self.boxes.get(box, False) or sure

    def count(self) -> tuple[int, int]:
        """Returns the fewest and the most elements that the accesses touch."""
        by_shift: dict[object, list[Box]] = {}
        for box in self.boxes:
            by_shift.setdefault(box.shift, []).append(box)
        fewest = most = 0
        for boxes in by_shift.values():
            each = sum(b.most for b in boxes)
            whole = union_size([b.spans for b in boxes])
            most += each if whole is None else min(each, whole)
            sure = [b for b in boxes if self.boxes[b]]
            joined = union_size([b.spans for b in sure if b.known])
            fewest = max(fewest, joined or 0, *(b.fewest for b in sure), 0)
        return fewest, min(most, self.ref.size)


@frozen(slots=True)
class _Sum:
    """An index as a sum over digits that vary independently."""

    digits: dict[Digit, int]
    constant: int
    shift: frozenset[tuple[Var, int]]
    """Task constants in the sum, with their coefficients."""


class IndexSets:
    """The elements that the accesses of one task touch."""

    def __init__(self, task: Task, forms: AffineForms) -> None:
        self.forms = forms
        self.constants = {v for eqn in task.head for v in eqn.outvars}
        self.indices: dict[Var, Progression] = {}
        """The values of the indices of the task and its loops with constant bounds."""
        loops: list[tuple[Var, tuple[Atom, ...]]]
        loops = [(e.index, e.bounds) for e in task.all_eqns if e.primitive is FOR]
        if task.index is not None:
            loops.append((task.index, (task.start, task.stop)))
        for index, bounds in loops:
            if (values := loop_values(*bounds)) is not None:
                self.indices[index] = values
        self.radix = MixedRadix(self.indices, forms.forms.values(), complete=True)

    def elements(self, ref: RefType, indices: Sequence[Atom], limit: int) -> list[Progression]:
        """Returns progressions of the row-major numbers, up to multiples of the modulus, that an access surely touches;
        none if they are not known, or if that takes more than `limit` progressions."""
        found = self._sum(self.forms.address(ref, indices))
        if found is None or found.shift or not self._independent(list(found.digits)):
            return []
        return all_values(self._sized(found.digits), found.constant, limit) or []

    def box(self, ref: RefType, indices: Sequence[Atom], times: int | None) -> Box:
        """Returns the box of an access that is executed `times` times (None if that is not known)."""
        spans: list[Progression] = []
        shifts: list[object] = []
        seen: list[Digit] = []
        known = True
        for index, size in zip(indices, ref.shape, strict=True):
            found = self._sum_that_fits(self.forms.of(index))
            shifts.append(found and found.shift)
            if found is None:
                spans.append(Progression(0, 1, size))
                known = False
                continue
            seen += found.digits
            span, is_dense = values_of(self._sized(found.digits), found.constant)
            spans.append(span if found.shift else span.clipped(size))
            known &= is_dense and not (found.shift and span.count > size)
        known &= self._independent(seen)
        most = prod(s.count for s in spans)
        fewest = most if known else 0
        if not known:
            most = most if times is None else min(most, times)
            flat = self._sum_that_fits(self.forms.address(ref, indices))
            if flat is not None and self._independent(list(flat.digits)):
                distinct = distinct_values(self._sized(flat.digits))
                fewest, most = distinct or 0, min(most, distinct or most)
        place = () if known else tuple(self.forms.of(i).key for i in indices)
        return Box(tuple(spans), known, fewest, most, tuple(shifts) if any(shifts) else (), place)

    def _independent(self, digits: list[Digit]) -> bool:
        """Returns whether digits take all combinations of values: no digit twice, no variable beside its quotient."""
        roots: set[Var] = set()
        for term, _ in dict.fromkeys(digits):
            root = self.radix.divided(term)
            var = term if isinstance(term, Var) else root[0] if root is not None else None
            if var is None or (var in roots and var not in self.radix.weights):
                return False
            roots.add(var)
        return len(set(digits)) == len(digits)

    def _size(self, digit: Digit) -> int:
        term = digit[0]
        return term.high - term.low + 1 if isinstance(term, Quotient) else self.radix.size(digit)

    def _sized(self, digits: Mapping[Digit, int]) -> list[tuple[int, int]]:
        return [(c, self._size(d)) for d, c in digits.items()]

    def _sum_that_fits(self, form: Form) -> _Sum | None:
        """Returns the form as a sum over digits, or None if it is not affine or may wrap."""
        found = self._sum(form)
        reach = 0 if found is None else sum([abs(c) * n for c, n in self._sized(found.digits)])
        return found if reach < self.forms.modulus // 2 else None

    def _sum(self, form: Form) -> _Sum | None:
        """Returns the form as a sum over digits, or None if it is not affine in them."""
        shift = {t: c for t, c in form.terms.items() if isinstance(t, Var) and t in self.constants}
        # Quotients of anything else vary over their whole interval.
        others = {t: c for t, c in form.terms.items() if isinstance(t, Quotient) and self.radix.digits(t) is None}
        affine = {t: c for t, c in form.terms.items() if t not in shift and t not in others}
        found = self.radix.sum_of(Form(affine, form.constant))
        if found is None or any(t.high >= range_of_dtype(t.dtype)[1] // t.divisor for t in others):
            return None
        total = {**found[0], **{(t, 0): c for t, c in others.items()}}
        constant = found[1] + sum(c * t.low for t, c in others.items())
        return _Sum({d: c for d, c in total.items() if self._size(d) > 1}, constant, frozenset(shift.items()))
