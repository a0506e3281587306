"""Small predicates and constructors that rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import range_of_dtype as bounds_of
from qdtrace.interpret.numpy_rules import wrapper
from qdtrace.ir.program import Atom, Literal, literal
from qdtrace.ir.types import DType, ScalarType

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FALSE", "TRUE", "bounds_of", "constant", "floating", "integer", "power_of_two", "same", "wrapped"]

TRUE, FALSE = literal(True, DType.bool), literal(False, DType.bool)


def constant(atom: Atom) -> np.generic | None:
    """The value of a constant."""
    return atom.value if atom.__class__ is Literal else None  # type: ignore[union-attr]


def integer(atom: Atom) -> int | None:
    """The value of an integer or bool constant."""
    return int(atom.value) if atom.__class__ is Literal else None  # type: ignore[union-attr]


def wrapped(value: int, dtype: DType) -> Literal:
    """An integer constant, modulo the width of the dtype."""
    return Literal(wrapper(dtype)(value), ScalarType(dtype))


def floating(value: object, dtype: DType) -> Literal:
    """A float constant."""
    return literal(value, dtype)


def power_of_two(atom: Atom) -> int | None:
    """k when the atom is the integer constant 2**k, k > 0, and positive in its dtype."""
    value = integer(atom)
    if value is None or value <= 1 or value & (value - 1):
        return None
    return value.bit_length() - 1


def same(a: Atom, b: Atom) -> bool:
    """True when two atoms surely are one value."""
    return a is b or (a.__class__ is Literal and a == b)
