"""How many elements of an array a set of accesses touches, as a fewest and a most.

An access inside static loops touches a *box*: on each axis an arithmetic progression. Boxes are joined exactly
(stencils overlap, components of a vector do not). Index variables are taken apart into digits where the program divides
them (`f // 32` and `f % 32` become two independent variables), so a flat range over two axes is a box as well. What is
not affine may be anywhere on its axis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from qdtrace.analysis.affine import Quotient, limits
from qdtrace.analysis.boxes import Span, distinct_values, progression, union_size
from qdtrace.analysis.work import iterations
from qdtrace.ir.program import Literal, Var
from qdtrace.ir.types import DType
from qdtrace.ir.walk import walk_task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.analysis.affine import AffineForms, Form, Term
    from qdtrace.ir.program import Atom, Task
    from qdtrace.ir.types import RefType

    Digit = tuple[Term, int]
    """A term and which of its digits."""


@dataclass(frozen=True, slots=True)
class Box:
    """What one access touches over all iterations: at most all of `spans`."""

    spans: tuple[Span, ...]
    known: bool
    """Exactly all of them."""
    fewest: int
    most: int
    shift: object = ()
    """Task constants in the indices; boxes of different shifts may or may not meet."""
    place: object = ()
    """The indices, where they are not `known`: other ones within the same spans are other elements."""


@dataclass
class Elements:
    """The elements of one reference that some accesses touch."""

    ref: RefType
    boxes: dict[Box, bool] = field(default_factory=dict[Box, bool])
    """Each with whether it is sure to be touched."""

    def add(self, box: Box, sure: bool) -> None:
        """Takes note of one access."""
        self.boxes[box] = self.boxes.get(box, False) or sure

    def count(self) -> tuple[int, int]:
        """Fewest and most elements touched."""
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


class IndexSets:
    """The boxes that the accesses of one task touch."""

    def __init__(self, task: Task, forms: AffineForms) -> None:
        self.forms = forms
        self.constants = {v for eqn in task.head for v in eqn.outvars}
        self.spans: dict[Var, Span] = {}
        if task.index is not None:
            self._loop(task.index, task.start, task.stop, 1)
        for eqn in walk_task(task):
            if eqn.primitive.name == "for" and isinstance(step := eqn.invars[2], Literal):
                self._loop(eqn.blocks[0].params[0], eqn.invars[0], eqn.invars[1], int(step.value))
        self.radix = self._radices()

    def _loop(self, index: Var, start: Atom, stop: Atom, step: int) -> None:
        count = trips(start, stop, step)
        if count is not None and isinstance(start, Literal):
            self.spans[index] = Span(int(start.value), step, count)

    def _radices(self) -> dict[Var, list[int]]:
        """The divisors `1 | d1 | d2 ...` of index variables that count from zero in whole multiples of them."""
        divisors: dict[Var, set[int]] = {}
        for form in self.forms.forms.values():
            for term in form.terms:
                if isinstance(term, Quotient) and (root := self._root(term)) is not None:
                    divisors.setdefault(root[0], {1}).add(root[1])
        found: dict[Var, list[int]] = {}
        for var, several in divisors.items():
            chain = sorted(several)
            divide = all(b % a == 0 for a, b in pairwise(chain))
            if divide and self.spans[var].start == 0 and self.spans[var].count % chain[-1] == 0:
                found[var] = chain
        return found

    def _root(self, term: Term) -> tuple[Var, int] | None:
        """The index variable and divisor of a quotient, of a quotient too: `(f // 4) // 8` is `f // 32`."""
        if isinstance(term, Var):
            span = self.spans.get(term)
            return (term, 1) if span is not None and span.step == 1 and span.start >= 0 else None
        if not isinstance(term, Quotient):
            return None
        inner = term.key
        if not isinstance(inner, Var):
            terms, constant = inner
            if constant or len(terms) != 1:
                return None
            ((inner, factor),) = terms
            if factor != 1:
                return None
        root = self._root(inner)
        return None if root is None else (root[0], root[1] * term.divisor)

    def box(self, ref: RefType, indices: Sequence[Atom], times: int | None) -> Box:
        """What an access touches that is made `times` times (None: unknown)."""
        spans: list[Span] = []
        shifts: list[object] = []
        seen: list[Digit] = []
        known = True
        for index, size in zip(indices, ref.shape, strict=True):
            digits, constant, shift = self._digits(self.forms.of(index)) or ({}, 0, None)
            shifts.append(shift)
            if shift is None:
                spans.append(Span(0, 1, size))
                known = False
                continue
            seen += digits
            span, is_dense = progression([(c, self._size(d)) for d, c in digits.items()], constant)
            spans.append(span if shift else span.clipped(size))
            known &= is_dense and not (shift and span.count > size)
        known &= self._independent(seen)
        most = prod(s.count for s in spans)
        fewest = most if known else 0
        if not known:
            most = most if times is None else min(most, times)
            flat = self._digits(self.forms.address(ref, indices))
            if flat is not None and self._independent(list(flat[0])):
                distinct = distinct_values([(c, self._size(d)) for d, c in flat[0].items()])
                fewest, most = distinct or 0, min(most, distinct or most)
        place = () if known else tuple(self.forms.of(i).key for i in indices)
        return Box(tuple(spans), known, fewest, most, tuple(shifts) if any(shifts) else (), place)

    def _independent(self, digits: list[Digit]) -> bool:
        """Whether the digits take all combinations of their values: none twice, no variable beside its quotient."""
        roots: set[Var] = set()
        for term, _ in dict.fromkeys(digits):
            root = self._root(term)
            var = term if isinstance(term, Var) else root[0] if root is not None else None
            if var is None or (var in roots and var not in self.radix):
                return False
            roots.add(var)
        return len(set(digits)) == len(digits)

    def _size(self, digit: Digit) -> int:
        term, place = digit
        if isinstance(term, Quotient):
            return term.high - term.low + 1
        assert isinstance(term, Var)
        count = self.spans[term].count
        if term not in self.radix:
            return count
        chain = [*self.radix[term], count]
        return chain[place + 1] // chain[place]

    def _digits(self, form: Form) -> tuple[dict[Digit, int], int, frozenset[tuple[Var, int]]] | None:
        """The form over digits that vary independently, its constant, and its task constants; None: not affine."""
        found: dict[Digit, int] = {}
        shift: dict[Var, int] = {}
        constant = form.constant
        for term, factor in form.terms.items():
            root = self._root(term)
            if isinstance(term, Var) and term in self.constants:
                shift[term] = factor
            elif root is not None and root[0] in self.radix:
                for place, weight in enumerate(self.radix[root[0]]):
                    if weight >= root[1]:
                        digit = (root[0], place)
                        found[digit] = found.get(digit, 0) + factor * (weight // root[1])
            elif isinstance(term, Var) and term in self.spans:
                span = self.spans[term]
                constant += factor * span.start
                found[term, 0] = factor * span.step
            elif isinstance(term, Quotient) and term.high < limits(term.dtype)[1] // term.divisor:
                constant += factor * term.low
                found[term, 0] = factor
            else:
                return None
        found = {digit: c for digit, c in found.items() if c and self._size(digit) > 1}
        if sum(abs(c) * self._size(d) for d, c in found.items()) > limits(DType.i32)[1]:
            return None  # may wrap
        return found, constant, frozenset(shift.items())


def trips(start: Atom, stop: Atom, step: int) -> int | None:
    """How often a loop runs; None where that is not static."""
    if not (isinstance(start, Literal) and isinstance(stop, Literal)):
        return None
    return iterations(int(start.value), int(stop.value), step)
