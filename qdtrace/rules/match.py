"""Small predicates and constructors that rules share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdtrace.analysis.index.intervals import range_of_dtype as bounds_of
from qdtrace.interpret.numpy_rules import wrapper
from qdtrace.ir.program import Atom, Literal, literal
from qdtrace.ir.types import DType

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from qdtrace.rules.emitter import Emitter

__all__ = [
    "FALSE", "TRUE", "bounds_of", "constant", "integer", "nested_constants", "power_of_two", "same",
    "wrapped",
]  # fmt: skip

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


def nested_constants(w: Emitter, inner: str, ops: Sequence[Atom]) -> tuple[Atom, int, int] | None:
    """Returns x, c and d of operands (x `inner` c) and d, where c and d are integer constants; None for others."""
    d = integer(ops[1])
    found = w.defined_by(ops[0], inner)
    if d is None or found is None or (c := integer(found[1])) is None:
        return None
    return found[0], c, d


def power_of_two(atom: Atom) -> int | None:
    """Returns k if the atom is the integer constant 2**k with k > 0, positive in its dtype; else None."""
    value = integer(atom)
    if value is None or value <= 1 or value & (value - 1):
        return None
    return value.bit_length() - 1


def same(a: Atom, b: Atom) -> bool:
    """Returns whether two atoms are surely one value."""
    return a is b or (a.__class__ is Literal and a == b)
