"""Dependence distances: decides if two accesses touch one element of a buffer in different iterations.

The accesses belong to two bodies over one index. They touch one element when all components of their indices are
equal; each component is a linear equation in the iteration of the one and that of the other. A component proves that
they *never* meet (disjoint intervals; no common divisor: Banerjee 1988), or only in the *same* iteration, or gives
the distance between the iterations. Where indices split the task's index into mixed radix digits (`i // m`, `i % m`),
the digits are the unknowns, and the distance is a vector with one component a digit.

What is proved holds for indices inside of the buffer's shape: others are undefined anyway.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from qdtrace.analysis.index.affine import Form
from qdtrace.analysis.index.mixed_radix import MixedRadix, is_one_to_one
from qdtrace.frozen import frozen

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from qdtrace.analysis.index.affine import AffineForms
    from qdtrace.analysis.index.mixed_radix import Digit
    from qdtrace.analysis.index.progression import Progression
    from qdtrace.ir.program import Var
    from qdtrace.ir.types import RefType


@frozen(slots=True)
class Dependence:
    """The iterations in which two accesses may touch one element; any pair if no field is set."""

    never: bool = False
    same: bool = False
    """True if they touch one element only within one iteration."""
    distance: tuple[int, ...] | None = None
    """Iteration of the second minus that of the first (per digit of a split index); None if it is not one number."""

    @property
    def is_safe(self) -> bool:
        """True if no two different iterations touch one element."""
        return self.never or self.same


NEVER, SAME, UNKNOWN = Dependence(never=True), Dependence(same=True), Dependence()


@frozen(slots=True)
class IterationSpace:
    """The task index and the constants of a task, over which the indices of both bodies are affine."""

    index: Var
    iterations: Progression | None
    """The values of the index; None if they are not known."""
    constants: Container[object]
    """Variables that hold one value for the whole task."""


def dependence_between(
    ref: RefType,
    first: Sequence[Form],
    second: Sequence[Form],
    forms: tuple[AffineForms, AffineForms],
    space: IterationSpace,
) -> Dependence:
    """Returns when accesses to a reference at the index tuples `first` and `second` may touch one element."""
    wrap = forms[0].modulus
    if max(ref.shape, default=0) >= wrap // 2:
        return UNKNOWN
    distances: set[int] = set()
    pairs = [_without_constants(a, b, space.constants) for a, b in zip(first, second, strict=True)]
    for a, b in pairs:
        if _apart(a, b, forms):
            return NEVER
        found = _distance(a, b, space, wrap)
        if found is not None:
            if not isinstance(found, int):
                return NEVER
            distances.add(found)
    if len(distances) > 1:
        return NEVER
    if distances:
        (distance,) = distances
        return SAME if not distance else Dependence(distance=(distance,))
    return _by_digits(pairs, space, wrap)


def _without_constants(a: Form, b: Form, constants: Container[object]) -> tuple[Form, Form]:
    """Returns both forms without the terms in task constants that they share."""
    common = {t: c for t, c in a.terms.items() if t in constants and b.terms.get(t) == c}
    if not common:
        return a, b
    drop = Form(common)
    return a.plus(drop, -1), b.plus(drop, -1)


def _apart(a: Form, b: Form, forms: tuple[AffineForms, AffineForms]) -> bool:
    """Returns whether no values of the terms make the two forms equal."""
    wrap = forms[0].modulus
    difference = b.constant - a.constant
    step = gcd(*a.terms.values(), *b.terms.values())
    if difference % gcd(wrap, step):
        return True
    # An index inside of a shape below half the modulus is its form where that stays below this.
    bounds = [of.bounds(form) for form, of in zip((a, b), forms, strict=True)]
    if any(found is None or max(-found[0], found[1]) >= wrap // 2 for found in bounds):
        return False
    (low_a, high_a), (low_b, high_b) = bounds  # type: ignore[misc]
    if high_a < low_b or high_b < low_a:
        return True
    return bool(difference % step) if step else difference != 0


def _distance(a: Form, b: Form, space: IterationSpace, wrap: int) -> int | str | None:
    """Returns `j - i` for `c * i + k == c * j + l`, "never" if no iterations have it, None for other forms."""
    factor = a.terms.get(space.index, 0)
    if not factor or a.terms != b.terms or len(a.terms) != 1 or space.iterations is None:
        return None
    count = space.iterations.count
    difference = a.constant - b.constant
    if abs(factor) * count + abs(difference) >= wrap:
        return 0 if not difference and abs(factor) * count < wrap else None
    if difference % factor or abs(difference // factor) >= count:
        return "never"
    return difference // factor


def _by_digits(pairs: Sequence[tuple[Form, Form]], space: IterationSpace, wrap: int) -> Dependence:
    """Returns the dependence of index tuples with the mixed radix digits of the index as unknowns."""
    index = space.index
    if space.iterations is None:
        return UNKNOWN
    radix = MixedRadix({index: space.iterations}, [form for pair in pairs for form in pair])
    if index not in radix.weights:
        return UNKNOWN
    digits = [(index, k) for k in range(len(radix.weights[index]))]
    # A digit of one value is the same in all iterations.
    distances: dict[Digit, int] = {d: 0 for d in digits if radix.size(d) == 1}
    for a, b in pairs:
        left, right = radix.sum_of(a), radix.sum_of(b)
        if left is None or right is None or not left[0] or left[0] != right[0]:
            continue
        sized = [(c, radix.size(d)) for d, c in left[0].items()]
        difference = left[1] - right[1]
        if sum(abs(c) * (n - 1) for c, n in sized) + abs(difference) >= wrap // 2:
            continue
        if len(sized) == 1:
            ((digit, factor),) = left[0].items()
            apart = difference // factor
            if difference % factor or abs(apart) >= radix.size(digit) or distances.setdefault(digit, apart) != apart:
                return NEVER
        elif not difference and is_one_to_one(sized):
            for digit in left[0]:
                if distances.setdefault(digit, 0):
                    return NEVER
    if len(distances) != len(digits):
        return UNKNOWN
    # Digits from the slowest to the fastest.
    vector = tuple(distances[d] for d in reversed(digits))
    return Dependence(distance=vector) if any(vector) else SAME
