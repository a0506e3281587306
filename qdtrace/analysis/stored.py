"""References whose every element surely holds a value when a task starts, so that a load cannot read unset memory.

Parameters are filled by the caller, buffers with an initial value by the runtime. Any other buffer is full after the
first task that surely stores every element: stores in no branch, in no loop that may not run, whose row-major element
numbers take every value. The numbers are affine forms of the task's and the loops' indices; they take every value when
the sizes of their terms are those of a mixed radix number: `3 * i + k`, with `k` of 3 values, or with stores to
`3 * i`, `3 * i + 1` and `3 * i + 2`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from qdtrace.analysis.affine import AffineForms, Form
from qdtrace.ir.program import Literal, Var, ref_type
from qdtrace.ir.types import Space

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from qdtrace.analysis.affine import Term
    from qdtrace.ir.program import Atom, Block, Eqn, Program, Task

    Interval = tuple[int, int]

_LISTED = 1024
"""Numbers of a store in loops that are looked at one by one, at most."""
_MOST = 1 << 31
"""Forms are exact modulo twice this."""


class StoredBefore:
    """For one program: what holds a value everywhere before each task."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._from: dict[Var, int] | None = None
        """The first task that finds the reference full."""
        self._position: dict[Task, int] = {}

    def find(self, task: Task, ref: Var) -> bool:
        """True when every element of `ref` holds a value before `task` of the program."""
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
    """The facts of a program, found when first asked for. Passes ask task by task, so the last ones are kept."""
    return StoredBefore(program)


class FullBefore:
    """The references that are full before one task, as a container."""

    def __init__(self, program: Program, task: Task) -> None:
        self._facts = stored_before(program)
        self._task = task

    def __contains__(self, ref: object) -> bool:
        return isinstance(ref, Var) and self._facts.find(self._task, ref)


def filled_by(task: Task, known: Container[Atom] = ()) -> set[Var]:
    """References that a task surely stores everywhere, out of those not known to be full."""
    ranges: dict[Var, Interval] = {}
    if task.index is not None and not _bind(ranges, task.index, task.start, task.stop, 1):
        return set()
    stores = [e for e in _sure_stores(task.body, ranges) if e.invars[0] not in known]
    if not stores:
        return set()
    forms = AffineForms(task)
    places: dict[tuple[Atom, object], tuple[Form, set[int]]] = {}
    for eqn in stores:
        ref, _, *indices = eqn.invars
        form = forms.address(ref_type(ref), indices)
        # as it is, and with the numbers of short loops one by one: a loop and a store beside it may be all together
        for terms, numbers in ((form.terms, [form.constant]), _listed(form, ranges, task.index)):
            _, constants = places.setdefault((ref, frozenset(terms.items())), (Form(terms), set()))
            constants.update(numbers)
    return {
        ref
        for (ref, _), (form, constants) in places.items()
        if isinstance(ref, Var) and _covers(form, constants, ranges, ref_type(ref).size)
    }


def _listed(form: Form, ranges: dict[Var, Interval], index: Var | None) -> tuple[dict[Term, int], list[int]]:
    """The terms of a form without those of short loops, and the numbers that the rest may add."""
    terms, numbers = dict(form.terms), [form.constant]
    for term, factor in form.terms.items():
        found = ranges.get(term) if isinstance(term, Var) and term is not index else None
        if found is not None and (found[1] - found[0] + 1) * len(numbers) <= _LISTED:
            del terms[term]
            numbers = [n + factor * k for n in numbers for k in range(found[0], found[1] + 1)]
    return terms, numbers


def _bind(ranges: dict[Var, Interval], index: Var, start: Atom, stop: Atom, step: int) -> bool:
    """Notes the values of an index; False where it may have none."""
    if not (isinstance(start, Literal) and isinstance(stop, Literal)):
        return False
    first, last = int(start.value), int(stop.value)
    if step not in (1, -1) or (last - first) * step <= 0:
        return False
    ranges[index] = (first, last - 1) if step > 0 else (last + 1, first)
    return True


def _sure_stores(block: Block, ranges: dict[Var, Interval]) -> Iterator[Eqn]:
    for eqn in block.eqns:
        name = eqn.primitive.name
        if name == "store" and ref_type(eqn.invars[0]).space is Space.GLOBAL:
            yield eqn
        elif name == "for":
            (body,), (start, stop, step) = eqn.blocks, eqn.invars[:3]
            if isinstance(step, Literal) and _bind(ranges, body.params[0], start, stop, int(step.value)):
                yield from _sure_stores(body, ranges)


def _covers(form: Form, constants: set[int], ranges: dict[Var, Interval], size: int) -> bool:
    """True when the numbers `constant + form` are all of `0:size`."""
    low, most = min(constants), len(constants)
    if size >= _MOST or max(constants) - low + 1 != most:
        return False
    parts: list[tuple[int, int]] = []
    for term, factor in form.terms.items():
        found = ranges.get(term) if isinstance(term, Var) else None
        if found is None:
            return False
        low += min(factor * found[0], factor * found[1])
        parts.append((abs(factor), found[1] - found[0] + 1))
    for factor, count in sorted(parts):
        if count > 1 and factor != most:
            return False
        most *= count
    return low == 0 and most == size
