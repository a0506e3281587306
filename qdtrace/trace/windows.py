"""The length of a slice whose ends are traced, where these differ by a number: `i - 2 : i + 3`, `8 * i : 8 * i + 8`.

Ends are read as sums of traced integers times numbers, through the equations that made them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from qdtrace.trace import compat
from qdtrace.trace.indexing import is_integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DEPTH = 16
"""Most equations between an end and what it is made of."""


def length_between(start: object, stop: object) -> int | None:
    """Returns the number of places from `start` to `stop`, 0 if there are none; None where it is no known number."""
    ends = _terms(start), _terms(stop)
    if None in ends:
        return None
    low, high = ends
    apart = _joined(high or {}, low or {}, -1)
    return max(apart.get(None, 0), 0) if all(n == 0 for value, n in apart.items() if value is not None) else None


def _terms(value: object, depth: int = _DEPTH) -> dict[object, int] | None:
    """Returns the factors of the variables that an integer is a sum of, and the number that is added, of None."""
    if (number := compat.number_of(value)) is not None:
        return {None: number}
    dtype = getattr(value, "dtype", None)
    if getattr(value, "shape", None) != () or not is_integer(value):
        return None
    name, operands, params = compat.made_of(value) if depth else ("", (), {})
    match name, operands:
        case "add" | "sub", (a, b):
            parts = _terms(a, depth - 1), _terms(b, depth - 1)
            if parts[0] is not None and parts[1] is not None:
                return _joined(parts[0], parts[1], 1 if name == "add" else -1)
        case "mul", (a, b):
            for factor, other in ((a, b), (b, a)):
                number, terms = compat.number_of(factor), _terms(other, depth - 1)
                if number is not None and terms is not None:
                    return {key: n * number for key, n in terms.items()}
        case "convert_element_type", (a,):
            if {getattr(a, "dtype", None), dtype} <= {np.dtype(np.int32), np.dtype(np.int64)}:
                return _terms(a, depth - 1)
        case _:
            pass
    variable = _same_operation(name, operands, params, depth) or compat.variable_of(value)
    return None if variable is None else {variable: 1}


def _same_operation(name: str, operands: Sequence[object], params: Mapping[str, object], depth: int) -> object:
    """Returns what all values of one operation on the same integers have in common, as `i // 4` written twice has."""
    terms = [_terms(operand, depth - 1) for operand in operands]
    if not name or None in terms:
        return None
    return (name, *(frozenset(t.items()) for t in terms if t), *((key, id(part)) for key, part in params.items()))


def _joined(a: dict[object, int], b: dict[object, int], factor: int) -> dict[object, int]:
    return {key: a.get(key, 0) + factor * b.get(key, 0) for key in {**a, **b}}
