"""Mixed radix: integers as sums of digits, each of which takes its values whatever the others are.

Programs take a flat index apart: `f // 12`, `f // 4 % 3` and `f % 4` are its digits in the radix 4, 3, ..., and
`f` is `12 * d2 + 4 * d1 + d0`. The quotients of a form are rewritten over the digits of the index that they divide.
Two questions are then asked of a sum `constant + c0 * d0 + c1 * d1 + ...`: which values it takes, and whether it tells
all combinations of its digits apart.
"""

from __future__ import annotations

from itertools import pairwise
from math import gcd, prod
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import Quotient
from qdtrace.analysis.index.intervals import range_of_dtype
from qdtrace.analysis.index.progression import Progression
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from qdtrace.analysis.index.affine import Form, Term

    Digit = tuple[Term, int]
    """A term and the number of its digit, from the fastest; the digit of an undivided variable counts iterations."""
    Sum = Sequence[tuple[int, int]]
    """Coefficient and number of values `n` of each digit, which takes the values `0 .. n - 1`."""


def values_of(digits: Sum, constant: int = 0) -> tuple[Progression, bool]:
    """Returns a rising progression that contains all values of `constant + sum(c * d)`, and if it has no others."""
    start, step, count, exact = constant, 1, 1, True
    for c, n in sorted(digits, key=lambda d: abs(d[0])):
        if c < 0:
            start += c * (n - 1)
        c = abs(c)
        if count == 1:
            step, count = c, n
            continue
        exact &= c % step == 0 and c // step <= count
        common = gcd(step, c)
        count = ((count - 1) * step + c * (n - 1)) // common + 1
        step = common
    return Progression(start, step if count > 1 else 1, count), exact


def all_values(digits: Sum, constant: int, limit: int) -> list[Progression] | None:
    """Returns progressions that are together exactly the values of `constant + sum(c * d)`; None if too many."""
    ordered = sorted(digits, key=lambda d: abs(d[0]))
    dense: list[tuple[int, int]] = []
    offsets = [constant]
    for digit in ordered:
        if values_of([*dense, digit])[1]:
            dense.append(digit)
            continue
        # A gap: the dense values so far are listed, or if they are many, the values of this digit.
        base, _ = values_of(dense)
        listed = list(base) if base.count <= limit else []
        if not listed and digit[1] <= limit:
            listed = [digit[0] * k for k in range(digit[1])]
        else:
            dense = [digit]
        if not listed or len(listed) * len(offsets) > limit:
            return None
        offsets = [o + k for o in offsets for k in listed]
    return [values_of(dense, offset)[0] for offset in offsets]


def is_one_to_one(digits: Sum) -> bool:
    """Returns whether different digits surely make different sums: each coefficient exceeds what smaller ones reach."""
    reach = 0
    for c, n in sorted((abs(c), n) for c, n in digits):
        if c <= reach:
            return False
        reach += c * (n - 1)
    return True


def distinct_values(digits: Sum) -> int | None:
    """Returns how many values `sum(c * d)` has if they form a progression or no two are equal; else None."""
    span, exact = values_of(digits)
    if exact:
        return span.count
    return prod(n for _, n in digits) if is_one_to_one(digits) else None


class MixedRadix:
    """Rewriter of forms as sums of the digits of index variables."""

    def __init__(self, indices: Mapping[Var, Progression], forms: Iterable[Form], *, complete: bool = False) -> None:
        """Splits the indices that the forms divide; with `complete` only if digits take all combinations of values."""
        self.indices = indices
        """The values of each index."""
        divisors: dict[Var, set[int]] = {}
        for form in forms:
            for term in form.terms:
                if isinstance(term, Quotient) and (root := self.divided(term)) is not None:
                    divisors.setdefault(root[0], {1}).add(root[1])
        self.weights: dict[Var, list[int]] = {}
        """Weights `1, w1, w2, ...` of the digits of each index that is divided: each weight divides the next."""
        for var, several in divisors.items():
            chain, values = sorted(several), indices[var]
            whole = values.start == 0 and values.count % chain[-1] == 0
            if all(b % a == 0 for a, b in pairwise(chain)) and (whole or not complete):
                self.weights[var] = chain

    def divided(self, term: Term) -> tuple[Var, int] | None:
        """Returns the index and the divisor of a quotient: `(f, 32)` for `(f // 4) // 8`, `(f, 1)` for `f`; or None."""
        if isinstance(term, Var):
            found = self.indices.get(term)
            return (term, 1) if found is not None and found.step == 1 and found.start >= 0 else None
        inner = term.dividend.sole_term() if isinstance(term, Quotient) else None
        root = None if inner is None else self.divided(inner)
        if root is None or not isinstance(term, Quotient):
            return None
        var, divisor = root
        values = self.indices[var]
        # A dtype too narrow for the dividend has wrapped it.
        if (values.start + values.count - 1) // divisor > range_of_dtype(term.dtype)[1]:
            return None
        return var, divisor * term.divisor

    def size(self, digit: Digit) -> int:
        """Returns how many values a digit takes; the first is 0, except for the last digit of a divided index."""
        var, place = digit
        assert isinstance(var, Var)
        values, chain = self.indices[var], self.weights.get(var)
        if chain is None:
            return values.count
        if place + 1 < len(chain):
            return chain[place + 1] // chain[place]
        return (values.start + values.count - 1) // chain[place] - values.start // chain[place] + 1

    def digits(self, term: Term) -> tuple[dict[Digit, int], int] | None:
        """Returns a term as digits with coefficients, and a constant; None if it is no index and no quotient of one."""
        root = self.divided(term)
        if root is not None and (chain := self.weights.get(root[0])) is not None and root[1] in chain:
            var, divisor = root
            found = {(var, k): w // divisor for k, w in enumerate(chain) if w >= divisor}
            return found, self.indices[var].start // chain[-1] * (chain[-1] // divisor)  # type: ignore[return-value]
        values = self.indices.get(term) if isinstance(term, Var) else None
        return None if values is None else ({(term, 0): values.step}, values.start)

    def sum_of(self, form: Form) -> tuple[dict[Digit, int], int] | None:
        """Returns a form as digits with nonzero coefficients, and a constant; None if some term has no digits."""
        total: dict[Digit, int] = {}
        constant = form.constant
        for term, factor in form.terms.items():
            found = self.digits(term)
            if found is None:
                return None
            for digit, weight in found[0].items():
                total[digit] = total.get(digit, 0) + factor * weight
            constant += factor * found[1]
        return {digit: c for digit, c in total.items() if c}, constant
