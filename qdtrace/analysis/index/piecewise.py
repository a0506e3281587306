"""Integers of a task as affine forms of its digits, each on a box of iterations.

The digits of a task are its index, or the numbers that the index is taken apart into (`mixed_radix`). A wrapped,
clamped or guarded index is no affine form on all iterations, but on boxes of them: `(d + 1) % 8` is `d + 1` for `d` in
`0 .. 6` and `d - 7` for 7. Evaluation on a box finds the form or the truth value of each integer; where an operation
has no single one and splitting a digit's range gives each part one, `Split` says where.

Forms are exact: an operation that may wrap in its dtype has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import AffineForms, Form
from qdtrace.analysis.index.intervals import compared, range_of_dtype
from qdtrace.analysis.index.mixed_radix import MixedRadix
from qdtrace.analysis.index.trips import loop_values
from qdtrace.ir.builder import scalar_var
from qdtrace.ir.primitives import IF
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from qdtrace.analysis.index.affine import Term
    from qdtrace.analysis.index.intervals import Interval
    from qdtrace.ir.program import Atom, Eqn, Task

MOST_STEP = 4
"""Largest step along an axis, and largest divisor of a digit, that elements are told apart by."""
Box = dict[Var, range]
"""The values of each digit."""
Value = Form | bool


class Split(Exception):  # noqa: N818 - it asks for a split, and is no error
    """Raised where an operation has no single form on a box, but has one on either side of a digit's value."""

    def __init__(self, digit: Var, at: int) -> None:
        super().__init__()
        self.digit = digit
        """The digit whose range is to be split."""
        self.at = at
        """The first value of the upper part."""

    def parts(self, box: Box) -> tuple[Box, Box]:
        """Returns the two parts of the box."""
        whole = box[self.digit]
        low, high = range(whole.start, self.at), range(self.at, whole.stop)
        return {**box, self.digit: low}, {**box, self.digit: high}


class Refine(Exception):  # noqa: N818 - it asks for other digits, and is no error
    """Raised where a digit is divided by a small number: its quotient and its remainder are better digits."""

    def __init__(self, digit: Var, by: int) -> None:
        super().__init__()
        self.digit = digit
        self.by = by

    def applied(self, index: Form, box: Box) -> tuple[Form, Box] | None:
        """Returns the form of an index, and the box, in those digits; None if the remainders are not all there."""
        values, weight = box[self.digit], index.terms[self.digit]
        if values.start % self.by or len(values) % self.by:
            return None
        whole, rest = (scalar_var(self.digit.dtype, "d") for _ in range(2))
        others = {t: c for t, c in index.terms.items() if t is not self.digit}
        form = Form({**others, whole: weight * self.by, rest: weight}, index.constant)
        ranges = {whole: range(values.start // self.by, values.stop // self.by), rest: range(self.by)}
        return form, {**{d: r for d, r in box.items() if d is not self.digit}, **ranges}


def digits_of(task: Task) -> tuple[Form, Box] | None:
    """Returns the index of a task as a form of its digits, and their values; None if the bounds are no constants."""
    values = None if task.index is None else loop_values(task.start, task.stop)
    if task.index is None or values is None or not values.count:
        return None
    forms = AffineForms(task)
    radix = MixedRadix({task.index: values}, forms.forms.values(), complete=True)
    weights = radix.weights.get(task.index)
    if weights is None:
        digit = scalar_var(task.index.dtype, "d")
        return Form({digit: 1}), {digit: range(values.start, values.start + values.count)}
    digits = [scalar_var(task.index.dtype, "d") for _ in weights]
    sizes = [radix.size((task.index, k)) for k in range(len(weights))]
    return Form(dict(zip(digits, weights, strict=True))), {d: range(n) for d, n in zip(digits, sizes, strict=True)}


class OnBox:
    """Values of integers and truth values of a task on a box of its iterations."""

    def __init__(self, box: Box, known: dict[Var, Form], *, may_split: bool) -> None:
        """`known` has the forms of the index and of other integers over the digits."""
        self.box = box
        self.may_split = may_split
        self.values: dict[Var, Value] = {v: self._reduced(form) for v, form in known.items()}

    def visit(self, eqns: Iterable[Eqn]) -> None:
        """Evaluates equations in order. Raises Split if it may and one has a value on parts of the box only."""
        for eqn in eqns:
            if eqn.primitive is IF:
                self._branches(eqn)
            elif len(eqn.outvars) == 1 and (rule := _RULES.get(eqn.primitive.name)) is not None:
                out = eqn.outvars[0]
                if (value := rule(self, eqn)) is not None and self._fits(value, out):
                    self.values[out] = self._reduced(value) if isinstance(value, Form) else value

    def of(self, atom: Atom) -> Value | None:
        """Returns the value of an integer or a truth value, or None if it is not known."""
        if isinstance(atom, Var):
            return self.values.get(atom)
        if atom.dtype.is_float:
            return None
        return Form({}, int(atom.value)) if atom.dtype.is_integer else bool(atom.value)

    def form(self, atom: Atom) -> Form | None:
        """Returns the form of an integer, or None."""
        value = self.of(atom)
        return value if isinstance(value, Form) else None

    def bounds(self, form: Form) -> Interval:
        """Returns the least and the greatest value of a form."""
        low = high = form.constant
        for digit, c in form.terms.items():
            assert isinstance(digit, Var)
            ends = c * self.box[digit][0], c * self.box[digit][-1]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def _reduced(self, form: Form) -> Form:
        """Returns the form with digits of one value as parts of the constant."""
        single: dict[Term, int] = {t: c for t, c in form.terms.items() if isinstance(t, Var) and len(self.box[t]) == 1}
        if not single:
            return form
        low, _ = self.bounds(Form(single))
        return form.plus(Form(single, -low), -1)

    def _fits(self, value: Value, out: Var) -> bool:
        if not isinstance(value, Form):
            return True
        (low, high), (least, most) = self.bounds(value), range_of_dtype(out.dtype)
        return least <= low and high <= most

    def split_at(self, form: Form, threshold: int) -> None:
        """Raises Split, if that is allowed, where a form of one digit passes from below a threshold to it."""
        if not self.may_split or len(form.terms) != 1:
            return
        ((digit, c),) = form.terms.items()
        assert isinstance(digit, Var)
        distance = threshold - form.constant
        at = -(-distance // c) if c > 0 else -distance // -c + 1
        if self.box[digit].start < at < self.box[digit].stop:
            raise Split(digit, at)

    def _branches(self, eqn: Eqn) -> None:
        """Takes the results of the branch that runs, or those that are the same in both."""
        if not any(v.dtype.is_integer or not v.dtype.is_float for v in eqn.outvars):
            return
        condition = self.of(eqn.invars[0])
        taken = eqn.blocks if condition is None else (eqn.blocks[0 if condition else 1],)
        for block in taken:
            self.visit(block.eqns)
        for k, out in enumerate(eqn.outvars):
            found = [self.of(block.results[k]) for block in taken]
            if found[0] is not None and all(f == found[0] for f in found):
                self.values[out] = found[0]


def _of_two(rule: Callable[[OnBox, Form, Form], Value | None]) -> Callable[[OnBox, Eqn], Value | None]:
    """Returns the rule of an operation on two integers whose forms need to be known."""

    def run(on: OnBox, eqn: Eqn) -> Value | None:
        a, b = (on.form(x) for x in eqn.invars)
        return None if a is None or b is None else rule(on, a, b)

    return run


def _neg(on: OnBox, eqn: Eqn) -> Value | None:
    a = on.form(eqn.invars[0])
    return a and a.times(-1)


def _mul(_: OnBox, a: Form, b: Form) -> Form | None:
    if not b.terms:
        return a.times(b.constant)
    return b.times(a.constant) if not a.terms else None


def _same(on: OnBox, eqn: Eqn) -> Value | None:
    value = on.of(eqn.invars[0])
    if isinstance(value, bool) and eqn.outvars[0].dtype.is_integer:
        return Form({}, int(value))
    return value if eqn.outvars[0].dtype.is_integer else None


def _div(on: OnBox, a: Form, divisor: Form) -> Form | None:
    """Returns the quotient, truncated towards zero, by a positive constant."""
    by = divisor.constant
    if divisor.terms or by <= 0:
        return None
    low, high = on.bounds(a)
    if low < 0:
        if high < 0 and low > -by:
            return Form({}, 0)
        on.split_at(a, 0 if high >= 0 else -by + 1)
        return None
    whole = {t: c for t, c in a.terms.items() if c % by == 0}
    rest = a.plus(Form(whole), -1)
    low, high = on.bounds(rest)
    if low // by != high // by:
        if on.may_split and by <= MOST_STEP and high // by - low // by > by and len(rest.terms) == 1:
            ((digit, c),) = rest.terms.items()
            if isinstance(digit, Var) and c == 1:
                raise Refine(digit, by)
        on.split_at(rest, (low // by + 1) * by)
        return None
    return Form({t: c // by for t, c in whole.items()}, low // by)


def _rem(on: OnBox, a: Form, divisor: Form) -> Form | None:
    quotient = _div(on, a, divisor)
    return quotient and a.plus(quotient, -divisor.constant)


def _compare(name: str) -> Callable[[OnBox, Form, Form], bool | None]:
    def rule(on: OnBox, a: Form, b: Form) -> bool | None:
        difference = a.plus(b, -1)
        low, high = on.bounds(difference)
        if (known := compared(name, (low, high), (0, 0))) is not None:
            return known
        first = {"lt": 0, "ge": 0, "le": 1, "gt": 1}.get(name, 0 if low < 0 else 1)
        on.split_at(difference, first)
        return None

    return rule


def _is_first_smaller(on: OnBox, a: Form, b: Form, constant: Form) -> bool | None:
    """Returns whether the first form is the smaller one. A box is split so that a constant has the fewest iterations:
    each of those reaches the same element."""
    difference = a.plus(b, -1)
    low, high = on.bounds(difference)
    if low < 0 < high:
        on.split_at(difference, 0 if constant.terms else 1)
        return None
    return high <= 0


def _min(on: OnBox, a: Form, b: Form) -> Form | None:
    is_first = _is_first_smaller(on, a, b, b)
    return None if is_first is None else a if is_first else b


def _max(on: OnBox, a: Form, b: Form) -> Form | None:
    is_first = _is_first_smaller(on, a, b, a)
    return None if is_first is None else b if is_first else a


def _abs(on: OnBox, eqn: Eqn) -> Value | None:
    a = on.form(eqn.invars[0])
    return a and _max(on, a, a.times(-1))


def _select(on: OnBox, eqn: Eqn) -> Value | None:
    condition, *sides = (on.of(x) for x in eqn.invars)
    if isinstance(condition, bool):
        return sides[0] if condition else sides[1]
    return sides[0] if sides[0] == sides[1] else None


def _decided_by(value: bool) -> Callable[[OnBox, Eqn], bool | None]:
    """Returns the rule of `and` or `or`, which one operand of that value decides."""

    def run(on: OnBox, eqn: Eqn) -> bool | None:
        found = [on.of(x) for x in eqn.invars]
        if any(f is value for f in found):
            return value
        return not value if all(f is (not value) for f in found) else None

    return run


def _not(on: OnBox, eqn: Eqn) -> Value | None:
    value = on.of(eqn.invars[0])
    return not value if isinstance(value, bool) else None


_OF_TWO: dict[str, Callable[[OnBox, Form, Form], Value | None]] = {
    "add": lambda _, a, b: a.plus(b), "sub": lambda _, a, b: a.plus(b, -1), "mul": _mul, "div": _div, "rem": _rem,
    "min": _min, "max": _max, **{name: _compare(name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
}  # fmt: skip
_RULES: dict[str, Callable[[OnBox, Eqn], Value | None]] = {
    **{name: _of_two(rule) for name, rule in _OF_TWO.items()},
    "neg": _neg, "abs": _abs, "convert": _same, "bound": _same, "select": _select, "and": _decided_by(False),
    "or": _decided_by(True), "not": _not,
}  # fmt: skip
"""Values of operations, by the name of the primitive."""
