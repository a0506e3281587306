"""Whether two accesses to one buffer meet in different iterations: dependence distances.

The accesses belong to two bodies over one index. They touch one element when all components of their indices are
equal; each component is a linear equation in the iteration of the one and that of the other. A component proves that
they *never* meet (disjoint intervals; no common divisor: Banerjee 1988), or only in the *same* iteration, or gives
the distance between the iterations. Where indices split the task's index into mixed radix digits (`i // m`, `i % m`),
the digits are the unknowns, and the distance is a vector with one component a digit.

What is proved holds for indices inside of the buffer's shape: others are undefined anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

from qdtrace.analysis.affine import Quotient, Term
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from qdtrace.analysis.affine import AffineForms, Form, Interval
    from qdtrace.ir.types import RefType

_WRAP = 1 << 32
_EXACT = 1 << 31
"""Forms are exact modulo 2**32. An index inside of a shape below 2**31 is its form where that stays below this."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """When two accesses may touch one element."""

    never: bool = False
    same: bool = False
    """Only in one iteration."""
    distance: tuple[int, ...] | None = None
    """Iteration of the second minus that of the first (per digit of a split index), where it is one number."""

    @property
    def is_safe(self) -> bool:
        """No two different iterations touch one element."""
        return self.never or self.same


NEVER, SAME, UNKNOWN = Meeting(never=True), Meeting(same=True), Meeting()


@dataclass(frozen=True, slots=True)
class Space:
    """What the indices of both bodies are written in."""

    index: Var
    span: Interval | None
    """First and last iteration; None: not known."""
    constants: Container[object]
    """Variables that hold one value for the whole task."""


Digit = Term | tuple[str, Term]
"""A term, or `("rest", t)`: what remains of `t` when it is divided."""


def meeting(
    ref: RefType, first: Sequence[Form], second: Sequence[Form], forms: tuple[AffineForms, AffineForms], space: Space
) -> Meeting:
    """When accesses to a reference at the index tuples `first` and `second` may touch one element."""
    if max(ref.shape, default=0) >= _EXACT:
        return UNKNOWN
    whole: set[int] = set()
    for a, b in zip(first, second, strict=True):
        a, b = _without_constants(a, b, space.constants)
        if _apart(a, b, forms, space):
            return NEVER
        found = _distance(a, b, space)
        if found is not None:
            if not isinstance(found, int):
                return NEVER
            whole.add(found)
    if len(whole) > 1:
        return NEVER
    if whole:
        (distance,) = whole
        return SAME if not distance else Meeting(distance=(distance,))
    return _by_digits(first, second, space)


def _without_constants(a: Form, b: Form, constants: Container[object]) -> tuple[Form, Form]:
    """Both without terms that are one value on both sides."""
    common = {t: c for t, c in a.terms.items() if t in constants and b.terms.get(t) == c}
    if not common:
        return a, b
    drop = type(a)(common)
    return a.plus(drop, -1), b.plus(drop, -1)


def _apart(a: Form, b: Form, forms: tuple[AffineForms, AffineForms], space: Space) -> bool:
    """No values of the terms make the two equal."""
    difference = b.constant - a.constant
    factors = [*a.terms.values(), *b.terms.values()]
    step = gcd(_WRAP, *factors)
    if difference % step:
        return True
    low_high = [_exact_bounds(form, of, space) for form, of in zip((a, b), forms, strict=True)]
    if low_high[0] is None or low_high[1] is None:
        return False
    (low_a, high_a), (low_b, high_b) = low_high[0], low_high[1]
    if high_a < low_b or high_b < low_a:
        return True
    step = gcd(*factors)
    return bool(difference % step) if step else difference != 0


def _exact_bounds(form: Form, forms: AffineForms, space: Space) -> Interval | None:
    if space.span is not None:
        forms.intervals[space.index] = space.span
    found = forms.bounds(form)
    return found if found is not None and max(-found[0], found[1]) < _EXACT else None


def _distance(a: Form, b: Form, space: Space) -> int | str | None:
    """`c * i + k` against `c * j + l`: j - i, or `never` where that is no possible number; None: another form."""
    factor = a.terms.get(space.index, 0)
    if not factor or a.terms != b.terms or len(a.terms) != 1 or space.span is None:
        return None
    count = space.span[1] - space.span[0] + 1
    difference = a.constant - b.constant
    if abs(factor) * count + abs(difference) >= _WRAP:
        return 0 if not difference and abs(factor) * count < _WRAP else None
    if difference % factor or abs(difference // factor) >= count:
        return "never"
    return difference // factor


def _by_digits(first: Sequence[Form], second: Sequence[Form], space: Space) -> Meeting:
    """The same with the digits of the index as unknowns."""
    splits = _splits([*first, *second], space)
    if splits is None:
        return UNKNOWN
    digits = _index_digits(splits, space)
    if digits is None:
        return UNKNOWN
    distances: dict[Digit, int] = {}
    for a, b in zip(first, second, strict=True):
        a, b = _without_constants(a, b, space.constants)
        left, right = _in_digits(a, splits), _in_digits(b, splits)
        if left != right or not left or not left.keys() <= digits.keys():
            continue
        difference = a.constant - b.constant
        if sum(abs(c) * max(map(abs, digits[d])) for d, c in left.items()) + abs(difference) >= _EXACT:
            continue
        if len(left) == 1:
            ((digit, factor),) = left.items()
            low, high = digits[digit]
            if difference % factor or abs(difference // factor) > high - low:
                return NEVER
            if distances.setdefault(digit, difference // factor) != difference // factor:
                return NEVER
        elif not difference and _is_radix(left, digits):
            for digit in left:
                if distances.setdefault(digit, 0):
                    return NEVER
    if distances.keys() != digits.keys():
        return UNKNOWN
    # Digits from the slowest to the fastest.
    vector = tuple(distances[d] for d in reversed(digits))
    return Meeting(distance=vector) if any(vector) else SAME


def _splits(forms: Sequence[Form], space: Space) -> dict[Term, Quotient] | None:
    """For each term that is divided: its quotient. None where one is divided by two numbers, or nothing is."""
    found: dict[Term, Quotient] = {}
    pending = [t for form in forms for t in form.terms if isinstance(t, Quotient)]
    while pending:
        quotient = pending.pop()
        term = _divided(quotient)
        if term is None or found.setdefault(term, quotient) != quotient:
            return None
        if isinstance(term, Quotient):
            pending.append(term)
    return found or None


def _divided(quotient: Quotient) -> Term | None:
    """What is divided, where that is one term."""
    if isinstance(quotient.key, Var):
        return quotient.key
    terms, constant = quotient.key
    if constant or len(terms) != 1:
        return None
    ((term, factor),) = terms
    return term if factor == 1 else None


def _index_digits(splits: Mapping[Term, Quotient], space: Space) -> dict[Digit, Interval] | None:
    """The digits of the task's index, fastest first, and their intervals."""
    if space.span is None or space.span[0] < 0:
        return None
    digits: dict[Digit, Interval] = {}
    term: Term = space.index
    low, high = space.span
    while (quotient := splits.get(term)) is not None:
        digits["rest", term] = 0, quotient.divisor - 1
        term, low, high = quotient, low // quotient.divisor, high // quotient.divisor
    if term is space.index:
        return None
    digits[term] = low, high
    return digits


def _in_digits(form: Form, splits: Mapping[Term, Quotient]) -> dict[Digit, int]:
    """Coefficients of the digits: `t` is `rest(t) + m * (t // m)`."""
    out: dict[Digit, int] = {}
    terms = dict(form.terms)
    while terms:
        # A quotient's own base first: it adds to the coefficient of the quotient.
        term = next((t for t in terms if not any(t == splits.get(s) for s in terms)), None)
        if term is None:
            return {}
        factor = terms.pop(term)
        quotient = splits.get(term)
        if quotient is None:
            out[term] = factor
            continue
        out["rest", term] = factor
        terms[quotient] = terms.get(quotient, 0) + factor * quotient.divisor
        if not terms[quotient]:
            del terms[quotient]
    return {d: c for d, c in out.items() if c}


def _is_radix(factors: Mapping[Digit, int], digits: Mapping[Digit, Interval]) -> bool:
    """Each factor is larger than all that the smaller ones can make up: one sum, one set of digits."""
    reach = 0
    for digit, factor in sorted(factors.items(), key=lambda item: abs(item[1])):
        if abs(factor) <= reach:
            return False
        low, high = digits[digit]
        reach += abs(factor) * (high - low)
    return True
