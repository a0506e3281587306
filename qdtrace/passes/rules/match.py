"""Small predicates and constructors that rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.interpret.numpy_rules import wrapper
from qdtrace.ir.program import Atom, Literal, literal
from qdtrace.ir.types import DType, ScalarType

if TYPE_CHECKING:
    import numpy as np

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


def bounds_of(dtype: DType) -> tuple[int, int]:
    """The smallest and the largest value of an integer dtype."""
    if dtype.is_signed:
        return -(1 << (dtype.bits - 1)), (1 << (dtype.bits - 1)) - 1
    return 0, (1 << dtype.bits) - 1


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
