"""Proves that different iterations of a task always touch different elements.

An index tuple is injective in the task index when equal tuples imply equal iterations. The proof looks at single
components (`c * i + constant`, or a window: `c * i + r` with `r` within `0 .. c-1`, or the exclusive or of one with a
constant) and at mixed radix pairs (`f // m` and `f % m` both used). The result is a set of *keys*: two accesses that
share a key meet only inside one iteration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms, Flipped, Form, Quotient
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.trips import task_values
from qdtrace.ir.program import Atom, Literal, Task, Var

if TYPE_CHECKING:
    from collections.abc import Sequence

Key = tuple[object, ...]


class Injectivity:
    """Injectivity facts of the index tuples of one task."""

    def __init__(self, task: Task, forms: AffineForms) -> None:
        self.index = task.index
        self.forms = forms
        self.constants = {v for eqn in task.head for v in eqn.outvars}
        values = task_values(task)
        if values is not None:
            self.count = values.count
        else:
            low, high = range_of_dtype(task.start.dtype)
            self.count = high - (int(task.start.value) if isinstance(task.start, Literal) else low) + 1
        """Upper bound on the iterations of the task."""

    def keys(self, indices: Sequence[Atom]) -> frozenset[Key]:
        """Returns proofs that the tuple is injective in the task index, none if none is found."""
        forms = [self.forms.of(i) for i in indices]
        found = [key for n, form in enumerate(forms) if (key := self._window(form, (n,))) is not None]
        work = list(forms)
        names: list[Key] = [(n,) for n in range(len(forms))]
        while (merged := _merge(work, names)) is not None:
            key = self._window(*merged)
            if key is not None:
                found.append(key)
        return frozenset(found)

    def _window(self, form: Form, where: Key) -> Key | None:
        """Returns the proof for `c * i + task constants + r` with `r` within one window of width |c|, or None."""
        if self.index is None:
            return None
        if len(form.terms) == 1:
            ((term, factor),) = form.terms.items()
            if isinstance(term, Flipped):
                # Exclusive or is one to one, and so is an odd factor modulo a power of two.
                inner = self._window(term.flipped, where) if factor % 2 else None
                return None if inner is None else (where, "xor", term.bits, factor, form.constant, inner)
        c = abs(form.terms.get(self.index, 0))
        power = c & -c
        if not c or self.count * power > self.forms.modulus:
            return None
        fixed: dict[object, int] = {}
        low = high = form.constant
        for term, coefficient in form.terms.items():
            if term is self.index:
                continue
            if isinstance(term, Var) and term in self.constants:
                fixed[term] = coefficient
                continue
            bounds = self.forms.bounds(Form({term: coefficient}))
            if bounds is None:
                return None
            low, high = low + bounds[0], high + bounds[1]
        wraps = c > 1 and self.count * c >= self.forms.modulus
        if wraps:
            window = ("at", low) if low == high else None
        else:
            window = ("window", low // c) if low // c == high // c else None
        return None if window is None else (where, form.terms[self.index], frozenset(fixed.items()), *window)


def _merge(work: list[Form], names: list[Key]) -> tuple[Form, Key] | None:
    """Replaces a quotient `f // m` and a remainder `f - m * (f // m)` (each plus a constant) by `f`.

    The name of the result keeps the constants: `(f // m, f % m)` and `(f // m + 1, f % m)` do not meet in one
    iteration.
    """
    for q, form in enumerate(work):
        if len(form.terms) != 1:
            continue
        ((quotient, scale),) = form.terms.items()
        if not isinstance(quotient, Quotient) or scale != 1:
            continue
        for r, other in enumerate(work):
            if r != q and other.terms.get(quotient) == -quotient.divisor:
                whole = other.plus(Form({quotient: quotient.divisor}))
                name = (names[q], names[r], quotient.divisor, form.constant)
                for k in sorted((q, r), reverse=True):
                    del work[k], names[k]
                work.append(whole)
                names.append(name)
                return whole, name
    return None
