"""Integers as affine forms: a constant plus coefficients times atoms.

An atom is a variable that is not itself affine, a quotient by a constant, or the exclusive or with a constant.
`rem(f, m)` is written as `f - m * quotient(f, m)`, so that the mixed radix split of a flat index cancels in a row-major
address: `m * (f // m) + f % m` is `f`. `not f` is `-1 - f`.

Forms are exact modulo 2**32: wrapping addition and multiplication and the conversions between integers keep them right
for every integer dtype of 32 bits or more. Statements about true values need `bounds` (an interval), which is None
where the form may wrap.
"""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.trips import loop_values
from qdtrace.frozen import frozen
from qdtrace.ir.primitives import FOR
from qdtrace.ir.program import Atom, Eqn, Literal, Task, Var
from qdtrace.ir.types import DType, ScalarType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.types import RefType


@frozen(slots=True)
class Quotient:
    """The quotient, truncated towards zero, of a value by a positive constant."""

    key: FormKey
    """The dividend, as a value of the dtype: terms and constant of a form, or of one variable in a wider dtype."""
    divisor: int
    dtype: DType
    low: int
    high: int
    dividend: Form = field(compare=False)
    """The form of the key. Its terms are ordered, and emitted code follows that order."""


@frozen(slots=True)
class Flipped:
    """The exclusive or of a form with a constant: different forms stay different."""

    key: FormKey
    """Terms and constant of the form."""
    bits: int
    """The constant, modulo 2**32."""
    low: int
    high: int
    flipped: Form = field(compare=False)
    """The form of the key, with its terms in order."""


Term = Var | Quotient | Flipped
FormKey = tuple[frozenset[tuple[Term, int]], int]


@frozen(eq=False, slots=True)
class Form:
    """An affine form, `constant + sum(coefficient * atom)`."""

    terms: dict[Term, int]
    constant: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.constant == other.constant and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def key(self) -> FormKey:
        """Terms and constant in a hashable form, which equality compares."""
        return frozenset(self.terms.items()), self.constant

    def plus(self, other: Form, scale: int = 1) -> Form:
        """Returns the form plus `scale` times another."""
        terms = dict(self.terms)
        for term, coefficient in other.terms.items():
            total = terms.get(term, 0) + scale * coefficient
            if total:
                terms[term] = total
            else:
                terms.pop(term, None)
        return Form(terms, self.constant + scale * other.constant)

    def sole_term(self) -> Term | None:
        """Returns the only term of the form, or None if it has a constant, a coefficient or other terms."""
        if self.constant or len(self.terms) != 1:
            return None
        ((term, factor),) = self.terms.items()
        return term if factor == 1 else None

    def variables(self) -> Iterator[Var]:
        """Yields the variables that the value is computed from."""
        for term in self.terms:
            if isinstance(term, Var):
                yield term
            else:
                yield from (term.dividend if isinstance(term, Quotient) else term.flipped).variables()

    def times(self, factor: int) -> Form:
        """Returns the form times a constant."""
        if not factor:
            return ZERO
        return Form({t: c * factor for t, c in self.terms.items()}, self.constant * factor)


ZERO = Form({}, 0)


@lru_cache
def _integers_of(bits: int) -> frozenset[DType]:
    """Returns the integer dtypes of at least so many bits."""
    return frozenset([d for d in DType if d.is_integer and d.bits >= bits])


class AffineForms:
    """The affine forms of all integers of a task; without a task, of the equations that are visited."""

    def __init__(self, task: Task | None = None, *, flips: bool = False, bits: int = 32) -> None:
        self.flips = flips
        """True if exclusive or with a constant makes a `Flipped` term; else its result is an atom."""
        self.bits = bits
        """Forms are exact modulo 2 to the power of this, for dtypes of as many bits or more."""
        self.modulus = 1 << bits
        self.dtypes = _integers_of(bits)
        """Dtypes of the values that have forms: integers that wrap at a multiple of the modulus."""
        self.forms: dict[Var, Form] = {}
        self.intervals: dict[Var, Interval] = {}
        if task is not None:
            if task.index is not None:
                self._bind_index(task.index, task.start, task.stop)
            for eqn in task.all_eqns:
                self.visit(eqn)

    def of(self, atom: Atom) -> Form:
        """Returns the form of a variable or literal of integer dtype."""
        if isinstance(atom, Literal):
            return Form({}, int(atom.value))
        form = self.forms.get(atom)
        return Form({atom: 1}) if form is None else form

    def address(self, ref: RefType, indices: Sequence[Atom]) -> Form:
        """Returns the form of the row-major element number of an access."""
        total, stride = ZERO, 1
        for index, size in zip(reversed(indices), reversed(ref.shape), strict=True):
            total = total.plus(self.of(index), stride)
            stride *= size
        return total

    def bounds(self, form: Form) -> Interval | None:
        """Returns the interval of the true value of a form, or None if the interval of an atom is not known."""
        low = high = form.constant
        for term, coefficient in form.terms.items():
            interval = self._interval(term)
            if interval is None:
                return None
            ends = coefficient * interval[0], coefficient * interval[1]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _interval(self, term: Term) -> Interval | None:
        return self.intervals.get(term) if isinstance(term, Var) else (term.low, term.high)

    def _exact(self, form: Form, dtype: DType) -> Interval | None:
        """Returns the bounds of a form if it surely does not wrap in the dtype, which has `bits` bits; else None."""
        interval = self.bounds(form) if dtype.bits == self.bits else None
        low, high = range_of_dtype(dtype)
        return interval if interval is not None and low <= interval[0] and interval[1] <= high else None

    def visit(self, eqn: Eqn) -> None:
        """Records the form of the result of an equation, or the interval of the index of a `for`."""
        if eqn.primitive is FOR:
            start, stop, step = eqn.bounds
            self._bind_index(eqn.index, start, stop, step)
            return
        if len(eqn.outvars) != 1 or eqn.primitive.name not in _RULES:
            return
        out = eqn.outvars[0]
        if isinstance(out.type, ScalarType) and out.dtype in self.dtypes:
            form = _RULES[eqn.primitive.name](self, eqn)
            if form is not None:
                self.forms[out] = form

    def _bind_index(self, index: Var, start: Atom, stop: Atom, step: Atom | None = None) -> None:
        """Records the interval of an index that runs from `start` up to (or down to) before `stop`."""
        values = loop_values(start, stop, step)
        if values is not None and values.interval is not None:
            self.intervals[index] = values.interval

    def quotient(self, value: Atom, divisor: int) -> Form | None:
        """Returns the form of `value // divisor`, truncated towards zero, or None if the divisor is not positive."""
        dtype = value.dtype
        if divisor <= 0:
            return None
        if isinstance(value, Literal):
            return Form({}, _truncated(int(value.value), divisor))
        form = self.of(value)
        interval = self._exact(form, dtype)
        if interval is not None and interval[0] >= 0:
            whole = {t: c for t, c in form.terms.items() if c % divisor == 0}
            rest = form.plus(Form(whole), -1)
            remainder = self.bounds(Form(rest.terms, rest.constant % divisor))
            if remainder is not None and remainder[0] >= 0 and remainder[1] < divisor:
                return Form({t: c // divisor for t, c in whole.items()}, rest.constant // divisor)
            if not form.constant and len(form.terms) == 1:
                ((term, coefficient),) = form.terms.items()
                if coefficient == 1 and isinstance(term, Quotient):  # truncation nests: (x // a) // b is x // (a * b)
                    low, high = (_truncated(b, divisor) for b in interval)
                    whole = Quotient(term.key, term.divisor * divisor, term.dtype, low, high, term.dividend)
                    return Form({whole: 1})
        if interval is None:
            interval = range_of_dtype(dtype)
        low, high = (_truncated(b, divisor) for b in interval)
        dividend = form if dtype.bits == self.bits else Form({value: 1})
        return Form({Quotient(dividend.key, divisor, dtype, low, high, dividend): 1})

    def is_natural(self, value: Atom) -> bool:
        """Returns whether a value and its form are surely not negative, so that shifts and masks divide it."""
        interval = self._exact(self.of(value), value.dtype)
        return not value.dtype.is_signed or (interval is not None and interval[0] >= 0)


def _truncated(a: int, b: int) -> int:
    return a // b if a >= 0 else -(-a // b)


def _add(forms: AffineForms, eqn: Eqn) -> Form:
    return forms.of(eqn.invars[0]).plus(forms.of(eqn.invars[1]))


def _sub(forms: AffineForms, eqn: Eqn) -> Form:
    return forms.of(eqn.invars[0]).plus(forms.of(eqn.invars[1]), -1)


def _neg(forms: AffineForms, eqn: Eqn) -> Form:
    return forms.of(eqn.invars[0]).times(-1)


def _mul(forms: AffineForms, eqn: Eqn) -> Form | None:
    a, b = map(forms.of, eqn.invars)
    if not b.terms:
        return a.times(b.constant)
    return b.times(a.constant) if not a.terms else None


def _shift_left(forms: AffineForms, eqn: Eqn) -> Form | None:
    by = forms.of(eqn.invars[1])
    known = not by.terms and 0 <= by.constant < forms.bits - 1
    return forms.of(eqn.invars[0]).times(1 << by.constant) if known else None


def _not(forms: AffineForms, eqn: Eqn) -> Form:
    return Form({}, -1).plus(forms.of(eqn.invars[0]), -1)


def _xor(forms: AffineForms, eqn: Eqn) -> Form | None:
    a, b = map(forms.of, eqn.invars)
    if not forms.flips or (a.terms and b.terms):
        return None
    form, constant = (a, b.constant) if a.terms else (b, a.constant)
    if not form.terms:
        return Form({}, form.constant ^ constant)
    dtype = eqn.outvars[0].dtype
    return Form({Flipped(form.key, constant % forms.modulus, *range_of_dtype(dtype), form): 1})


def _bound(forms: AffineForms, eqn: Eqn) -> Form:
    return forms.of(eqn.invars[0])


def _convert(forms: AffineForms, eqn: Eqn) -> Form | None:
    return forms.of(eqn.invars[0]) if eqn.invars[0].dtype in forms.dtypes else None


def _div(forms: AffineForms, eqn: Eqn) -> Form | None:
    by = forms.of(eqn.invars[1])
    return None if by.terms else forms.quotient(eqn.invars[0], by.constant)


def _rem(forms: AffineForms, eqn: Eqn) -> Form | None:
    by = forms.of(eqn.invars[1])
    quotient = None if by.terms else forms.quotient(eqn.invars[0], by.constant)
    return None if quotient is None else forms.of(eqn.invars[0]).plus(quotient, -by.constant)


def _shift_right(forms: AffineForms, eqn: Eqn) -> Form | None:
    value, by = eqn.invars[0], forms.of(eqn.invars[1])
    if by.terms or not 0 <= by.constant < forms.bits - 1 or not forms.is_natural(value):
        return None
    return forms.quotient(value, 1 << by.constant)


def _mask(forms: AffineForms, eqn: Eqn) -> Form | None:
    """Returns the form of `value & (2**k - 1)`, which is the remainder by 2**k."""
    value, by = eqn.invars[0], forms.of(eqn.invars[1])
    divisor = by.constant + 1
    if by.terms or not 1 < divisor <= forms.modulus >> 2 or divisor & by.constant or not forms.is_natural(value):
        return None
    quotient = forms.quotient(value, divisor)
    return None if quotient is None else forms.of(value).plus(quotient, -divisor)


_RULES: dict[str, Callable[[AffineForms, Eqn], Form | None]] = {
    "add": _add, "sub": _sub, "neg": _neg, "mul": _mul, "shift_left": _shift_left, "convert": _convert, "bound": _bound,
    "bitcast": _convert, "not": _not, "xor": _xor, "div": _div, "rem": _rem,
    "shift_right_logical": _shift_right, "and": _mask,
}  # fmt: skip
