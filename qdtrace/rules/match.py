"""Small predicates and constructors that rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import range_of_dtype as bounds_of
from qdtrace.interpret.numpy_rules import wrapper
from qdtrace.ir.program import Atom, Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    import numpy as np

__all__ = ["FALSE", "TRUE", "bounds_of", "constant", "floating", "integer", "power_of_two", "same", "wrapped"]

TRUE, FALSE = literal(True, DType.bool), literal(False, DType.bool)


def constant(atom: Atom) -> np.generic | None:
    """Returns the value of a constant, or None for a variable."""
    return atom.value if atom.__class__ is Literal else None  # type: ignore[union-attr]


def integer(atom: Atom) -> int | None:
    """Returns the value of an integer or bool constant, or None for a variable."""
    return int(atom.value) if atom.__class__ is Literal else None  # type: ignore[union-attr]


def wrapped(value: int, dtype: DType) -> Literal:
    """Returns an integer constant, wrapped to the width of the dtype."""
    return literal(wrapper(dtype)(value), dtype)


def floating(value: object, dtype: DType) -> Literal:
    """Returns a float constant."""
    return literal(value, dtype)


def power_of_two(atom: Atom) -> int | None:
    """Returns k if the atom is the integer constant 2**k with k > 0, positive in its dtype; else None."""
    value = integer(atom)
    if value is None or value <= 1 or value & (value - 1):
        return None
    return value.bit_length() - 1


def same(a: Atom, b: Atom) -> bool:
    """Returns whether two atoms are surely one value."""
    return a is b or (a.__class__ is Literal and a == b)
