"""Conditions on remainders, as `(i + j) % 2 == 0`: they give iterations, and the elements that these reach, colours."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from qdtrace.frozen import frozen
from qdtrace.ir.primitives import AND, CONVERT, EQ, NE, NOT, OR, REM
from qdtrace.ir.program import Var

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from qdtrace.analysis.index.affine import Form
    from qdtrace.analysis.index.piecewise import OnBox
    from qdtrace.ir.program import Atom, Eqn

MOST_COLOURS = 64
"""Largest number that remainders are told apart by."""


@frozen(slots=True)
class Residue:
    """The colour of elements: `sum(factor * index along the axis) % modulus == remainder`."""

    factors: tuple[int, ...]
    """One for each axis, at least 0 and below the modulus."""
    modulus: int
    remainder: int

    def excludes(self, other: Residue) -> bool:
        """Returns whether no element has both."""
        common = gcd(self.modulus, other.modulus)
        return any(
            (self.remainder - sign * other.remainder) % common != 0
            and all((a - sign * b) % common == 0 for a, b in zip(self.factors, other.factors, strict=True))
            for sign in (1, -1)
        )


@frozen(slots=True)
class Congruence:
    """A condition on a box of iterations: `form % modulus == remainder`, for a form that is not negative there."""

    form: Form
    modulus: int
    remainder: int


def remainders(condition: Atom, makers: Mapping[Var, Eqn]) -> Iterator[tuple[Atom, Atom]]:
    """Yields the parts of a condition, all of which hold if it does, with what each is decided by: what is divided in
    a test of a remainder, any other part itself."""
    eqn = makers.get(condition) if isinstance(condition, Var) else None
    if eqn is not None and eqn.primitive is AND:
        for part in eqn.invars:
            yield from remainders(part, makers)
        return
    tested = eqn and _tested(eqn, makers)
    yield condition, condition if tested is None else tested[0].invars[0]


def congruences(condition: Atom, holds: bool, makers: Mapping[Var, Eqn], on: OnBox) -> tuple[list[Congruence], bool]:
    """Returns what a condition that holds, or does not, says about remainders; and whether that is all that it says."""
    if on.of(condition) is holds:
        return [], True
    eqn = makers.get(condition) if isinstance(condition, Var) else None
    if eqn is None:
        return [], False
    if eqn.primitive is NOT:
        return congruences(eqn.invars[0], not holds, makers, on)
    if eqn.primitive is (AND if holds else OR) and not eqn.outvar.dtype.is_integer:
        found = [congruences(part, holds, makers, on) for part in eqn.invars]
        return [one for some, _ in found for one in some], all(is_all for _, is_all in found)
    one = _congruence(eqn, holds, makers, on)
    return ([], False) if one is None else ([one], True)


def _tested(eqn: Eqn, makers: Mapping[Var, Eqn]) -> tuple[Eqn, Atom] | None:
    """Returns the remainder that a comparison is of, and the other side."""
    if eqn.primitive not in (EQ, NE):
        return None
    for side, other in (eqn.invars, eqn.invars[::-1]):
        made = makers.get(side) if isinstance(side, Var) else None
        while made is not None and made.primitive is CONVERT and isinstance(made.invars[0], Var):
            made = makers.get(made.invars[0])
        if made is not None and made.outvar.dtype.is_integer and made.primitive in (REM, AND):
            return made, other
    return None


def _congruence(eqn: Eqn, holds: bool, makers: Mapping[Var, Eqn], on: OnBox) -> Congruence | None:
    tested = _tested(eqn, makers)
    if tested is None:
        return None
    made, other = tested
    form, by, remainder = (on.form(a) for a in (*made.invars, other))
    if form is None or by is None or remainder is None or by.terms or remainder.terms or on.bounds(form)[0] < 0:
        return None
    modulus = by.constant + (made.primitive is AND)  # the bits below a power of 2 are a remainder
    if not 1 < modulus <= MOST_COLOURS or not 0 <= remainder.constant < modulus:
        return None
    if made.primitive is AND and modulus & by.constant:
        return None
    if holds is (eqn.primitive is EQ):
        return Congruence(form, modulus, remainder.constant)
    return Congruence(form, 2, 1 - remainder.constant) if modulus == 2 else None
