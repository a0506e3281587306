"""Proves that different iterations of a task, or of a loop, always touch different elements.

An index tuple is injective in the index of a task when equal tuples imply equal iterations. The proof looks at single
components (`c * i + constant`, or a window: `c * i + r` with `r` within `0 .. c-1`, or a digit: `c * i + m * r` with
`c * i` within `0 .. m-1`, or the exclusive or of one with a constant) and at digits of a mixed radix (`f // m` and
`f % m` both used). The result is a set of *keys*: two accesses that share a key meet only inside one iteration.
"""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms, Flipped, Form, Quotient
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.trips import loop_values
from qdtrace.ir.program import Literal
from qdtrace.ir.walk import bound_in_block

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qdtrace.ir.program import Atom, Eqn, Task

Key = tuple[object, ...]


class Injectivity:
    """Injectivity facts of the index tuples of one task, or of one `for` in it."""

    def __init__(self, task: Task, forms: AffineForms, loop: Eqn | None = None) -> None:
        self.index = task.index if loop is None else loop.index
        self.forms = forms
        self._body = task.body if loop is None else loop.blocks[0]
        bounds = (task.start, task.stop, None) if loop is None else loop.bounds
        values = loop_values(*bounds)
        low, high = range_of_dtype(bounds[0].dtype)
        if values is not None:
            low, high = values.interval or (0, -1)
        elif loop is None and isinstance(task.start, Literal):
            low = int(task.start.value)
        self.most = max(-low, high)
        """The largest magnitude of a value of the index."""
        self.count = high - low + 1
        """Upper bound on the values of the index, those between two that a loop steps over included."""

    @cached_property
    def _varying(self) -> set[object]:
        """Variables with several values in the task, or in the loop."""
        return {self.index, *bound_in_block(self._body)}

    def keys(self, indices: Sequence[Atom]) -> frozenset[Key]:
        """Returns proofs that the tuple is injective in the index, none if none is found."""
        forms = [self.forms.of(i) for i in indices]
        found = [key for n, form in enumerate(forms) if (key := self._window(form, (n,))) is not None]
        work = list(forms)
        names: list[Key] = [(n,) for n in range(len(forms))]
        while changed := _eliminate(work, names):
            found += [key for n in changed if (key := self._window(work[n], names[n])) is not None]
        return frozenset(found)

    def _window(self, form: Form, where: Key) -> Key | None:
        """Returns the proof for `c * i + constants + r` with `r` within one window of width |c|, or of multiples of
        more than `c * i`, or None."""
        if self.index is None:
            return None
        if len(form.terms) == 1:
            ((term, factor),) = form.terms.items()
            if isinstance(term, Flipped):
                # Exclusive or is one to one, and so is an odd factor modulo a power of two.
                inner = self._window(term.flipped, where) if factor % 2 else None
                return None if inner is None else (where, "xor", term.bits, factor, form.constant, inner)
        factor = form.terms.get(self.index, 0)
        c = -factor if factor < 0 else factor  # a user's program may replace `abs` while it is traced
        power = c & -c
        if not c or self.count * power > self.forms.modulus:
            return None
        fixed: dict[object, int] = {}
        low, high, unit = form.constant, form.constant, 0
        for term, coefficient in form.terms.items():
            if term is self.index:
                continue
            if self._varying.isdisjoint(Form({term: 1}).variables()):
                fixed[term] = coefficient
                continue
            bounds = self.forms.bounds(Form({term: coefficient}))
            if bounds is None:
                return None
            low, high = low + bounds[0], high + bounds[1]
            unit = gcd(unit, coefficient)
        wraps = c > 1 and self.count * c >= self.forms.modulus
        if wraps:
            window = ("at", low) if low == high else None
        else:
            window = ("window", low // c) if low // c == high // c else None
        # what else differs is a multiple of the unit, so equal elements have equal `c * i`, unless a sum wraps around
        stays = max(-low, high) + self.most * c < self.forms.modulus // 4
        if window is None and stays and (self.count - 1) * c < unit:
            window = ("digit", unit, form.constant % unit)
        return None if window is None else (where, form.terms[self.index], frozenset(fixed.items()), *window)


def _eliminate(work: list[Form], names: list[Key]) -> list[int]:
    """Takes a quotient that is a component (plus a constant) out of all others, as equal tuples have it equal, too.

    So `(f // m, f % m)` becomes `f`, and `(f // (m * n), f // m % n, f % m)` does in two steps. The quotient is no
    component any more. Returns which components changed. The name of each keeps what was added to it:
    `(f // m, f % m)` and `(f // m + 1, f % m)` do not meet in one iteration.
    """
    for q, form in enumerate(work):
        if len(form.terms) != 1:
            continue
        ((quotient, scale),) = form.terms.items()
        others = [r for r, other in enumerate(work) if r != q and quotient in other.terms]
        if not isinstance(quotient, Quotient) or scale != 1 or not others:
            continue
        for r in others:
            factor = work[r].terms[quotient]
            work[r] = work[r].plus(Form({quotient: -factor}))
            names[r] = (names[q], names[r], factor, form.constant)
        del work[q], names[q]
        return [r - (r > q) for r in others]
    return []
