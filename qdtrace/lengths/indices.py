"""Indices of a graph at other lengths: intervals of what loops and numbers make of them.

A check of an index is left out of the program of all lengths where the interval of the index is in the array at all
lengths that the program is made of. At each other length it is computed anew, with the numbers of that length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qdtrace.frozen import frozen
from qdtrace.ir.memory import indices_of, reference
from qdtrace.ir.primitives import BOUND, CONVERT, FOR, LOAD
from qdtrace.ir.program import Literal
from qdtrace.lengths.skeleton import SIZE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom, Eqn, Task, Var
    from qdtrace.lengths.skeleton import Skeleton

    Index = tuple[Any, ...]
    """The form of an index: an operation with its operands, or a leaf with a position."""
    Interval = tuple[int, int]

ARITHMETIC = ("add", "sub", "mul", "div", "rem", "neg", "min", "max")
MOST_NESTED = 16
"""The deepest form that is looked at."""


class _UnknownError(Exception):
    """No interval is known."""


class _EmptyError(Exception):
    """A loop around has no iteration, so that nothing is indexed."""


@frozen(eq=False, slots=True)
class Indices:
    """The indices of a graph. Positions are those of its literals, then lengths, or of its parameters."""

    checks: dict[Eqn, tuple[Index, int]]
    """Checks with the index and the position of the size."""
    accesses: set[tuple[Index, int]] | None
    """Indices of first axes with the position of the length; None if one is unknown."""


def indices_in(skeleton: Skeleton) -> Indices:
    """Returns the indices of a graph."""
    literals = {slot: k for k, slot in enumerate(skeleton.literals)}
    lengths = {var: len(literals) + k for k, var in enumerate(skeleton.lengths)}
    params = {var: k for k, var in enumerate(skeleton.program.params)}
    checks: dict[Eqn, tuple[Index, int]] = {}
    accesses: set[tuple[Index, int]] | None = set()
    for task in skeleton.program.tasks:
        forms = _Forms(task, literals, params)
        for eqn in task.all_eqns:
            if eqn.primitive is BOUND and (form := forms.of(eqn, 0)) is not None:
                checks[eqn] = form, literals[eqn, SIZE]
            elif eqn.primitive.is_access and reference(eqn) in lengths:
                index = indices_of(eqn)[0]
                form = forms.of(eqn, eqn.invars.index(index))
                if form is None:
                    accesses = None
                elif accesses is not None and not isinstance(index, Literal):  # a constant one is guarded
                    accesses.add((form, lengths[reference(eqn)]))
    return Indices(checks, accesses)


class _Forms:
    """The forms of indices in a task."""

    def __init__(self, task: Task, literals: dict[Any, int], params: dict[Var, int]) -> None:
        self.literals, self.params = literals, params
        self.defined = task.definitions
        self.loops: dict[Var | None, tuple[Any, int]] = {task.index: (task, 1)}
        for eqn in task.all_eqns:
            if eqn.primitive is FOR and isinstance(eqn.step, Literal) and eqn.step.value != 0:
                self.loops[eqn.index] = eqn, int(eqn.step.value)

    def of(self, owner: Any, k: int) -> Index | None:
        """Returns the form of an operand of an equation, or None if it is unknown."""
        try:
            return self._form(owner, k, owner.invars[k], 0)
        except _UnknownError:
            return None

    def _form(self, owner: Any, k: int, atom: Atom, depth: int) -> Index:
        if depth > MOST_NESTED:
            raise _UnknownError
        if isinstance(atom, Literal):
            return "row", self.literals[owner, k]
        if atom in self.loops:
            loop, step = self.loops[atom]
            start, stop = _bounds(loop)
            return "loop", step, self._form(loop, 0, start, depth + 1), self._form(loop, 1, stop, depth + 1)
        eqn = self.defined.get(atom)
        if eqn is None or not atom.dtype.is_integer:
            raise _UnknownError
        if eqn.primitive is LOAD and reference(eqn) in self.params and not indices_of(eqn):
            return "param", self.params[reference(eqn)]
        if eqn.primitive is BOUND:
            return "bound", self.of(eqn, 0), self.literals[eqn, SIZE]
        if eqn.primitive is CONVERT and eqn.invars[0].dtype.is_integer and eqn.invars[0].dtype.bits <= atom.dtype.bits:
            return self._form(eqn, 0, eqn.invars[0], depth + 1)
        if eqn.primitive.name not in ARITHMETIC or not atom.dtype.is_signed:
            raise _UnknownError
        return eqn.primitive.name, *[self._form(eqn, j, a, depth + 1) for j, a in enumerate(eqn.invars)]


def _bounds(loop: Any) -> tuple[Atom, Atom]:
    return (loop.start, loop.stop) if hasattr(loop, "head") else loop.bounds[:2]


def is_inside(form: Index, row: Sequence[Any], params: Sequence[Any], size: int) -> bool:
    """Returns whether an index is below a size and not negative, with these numbers."""
    try:
        low, high = _interval(form, row, params)
    except _EmptyError:
        return True
    except _UnknownError:
        return False
    return low >= 0 and high < size


def _interval(form: Index, row: Sequence[Any], params: Sequence[Any]) -> Interval:
    low, high = _interval_of(form, row, params)
    if not -(2**31) <= low <= high < 2**31:
        raise _UnknownError
    return low, high


def _interval_of(form: Index, row: Sequence[Any], params: Sequence[Any]) -> Interval:
    kind, *parts = form
    if kind in ("row", "param"):
        value = (row if kind == "row" else params)[parts[0]]
        if not isinstance(value, (int, np.integer)):
            raise _UnknownError
        return int(value), int(value)
    if kind == "bound":
        return _checked(parts[0], row[parts[1]], row, params)
    if kind == "loop":
        step, (first, start), (stop, last) = parts[0], *[_interval(x, row, params) for x in parts[1:]]
        low, high = (first, last - 1) if step > 0 else (stop + 1, start)
        if low > high:
            raise _EmptyError
        return low, high
    (a, b), *others = [_interval(x, row, params) for x in parts]
    if kind == "neg":
        return -b, -a
    c, d = others[0]
    if kind in ("div", "rem"):
        if a < 0 or c <= 0:
            raise _UnknownError
        return (a // d, b // c) if kind == "div" else (a, b) if b < c else (0, min(b, d - 1))
    products = a * c, a * d, b * c, b * d
    found: dict[str, Interval] = {
        "add": (a + c, b + d), "sub": (a - d, b - c), "mul": (min(products), max(products)),
        "min": (min(a, c), min(b, d)), "max": (max(a, c), max(b, d)),
    }  # fmt: skip
    return found[kind]


def _checked(form: Index | None, size: int, row: Sequence[Any], params: Sequence[Any]) -> Interval:
    """Returns the interval of an index that passed a check."""
    try:
        low, high = (0, size - 1) if form is None else _interval(form, row, params)
    except _UnknownError:
        low, high = 0, size - 1
    low, high = max(low, 0), min(high, size - 1)
    return (low, high) if low <= high else (0, size - 1)
