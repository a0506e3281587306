"""The length of a slice whose ends are traced, where these differ by a number: `i - 2 : i + 3`, `8 * i : 8 * i + 8`.

Ends are read as sums of traced integers times numbers, through the equations that made them.
"""

from __future__ import annotations

from dataclasses import field

import numpy as np

from qdtrace.frozen import mutable
from qdtrace.trace import compat
from qdtrace.trace.indexing import is_integer

_MOST_READ = 64
"""Most values that are read of what two ends are made of; further ones are variables."""
_LEAST_BYTES = 4
"""Smaller integers wrap around within an axis: where k is a uint8 of 250, k + 10 is 4, and `k : k + 10` is empty."""


def length_between(start: object, stop: object) -> int | None:
    """Returns the number of places from `start` to `stop`, 0 if there are none; None where it is no known number."""
    sums = _Sums()
    ends = sums.of(start), sums.of(stop)
    if None in ends:
        return None
    low, high = ends
    apart = _joined(high or {}, low or {}, -1)
    return max(apart.get(None, 0), 0) if all(n == 0 for value, n in apart.items() if value is not None) else None


@mutable(eq=False)
class _Sums:
    """Reads integers as sums. A value is read once, so that both ends have the same variables."""

    read: dict[object, dict[object, int]] = field(default_factory=dict[object, "dict[object, int]"])
    """The sum that each variable of the trace is."""
    operations: dict[object, int] = field(default_factory=dict[object, int])
    """Numbers of the operations on the same integers, of which each is one variable."""

    def of(self, value: object) -> dict[object, int] | None:
        """Returns the factors of the variables that an integer is a sum of, and the number that is added, of None."""
        if (number := compat.number_of(value)) is not None:
            return {None: number}
        if getattr(value, "shape", None) != () or not is_integer(value):
            return None
        variable = compat.variable_of(value)
        if variable is None:
            return None
        if variable not in self.read:
            self.read[variable] = {variable: 1}
            if len(self.read) <= _MOST_READ:
                self.read[variable] = self._sum(value) or self._operation(value) or {variable: 1}
        return self.read[variable]

    def _sum(self, value: object) -> dict[object, int] | None:
        """Returns what a value is if it is a sum or a product with a number."""
        name, operands, _ = compat.made_of(value)
        dtype = getattr(value, "dtype", None)
        if dtype is None or dtype.itemsize < _LEAST_BYTES:
            return None
        match name, operands:
            case "add" | "sub", (a, b):
                parts = self.of(a), self.of(b)
                if parts[0] is not None and parts[1] is not None:
                    return _joined(parts[0], parts[1], {"add": 1, "sub": -1}[name])
            case "mul", (a, b):
                for factor, other in ((a, b), (b, a)):
                    number = compat.number_of(factor)
                    if number is not None and (terms := self.of(other)) is not None:
                        return {key: n * number for key, n in terms.items()}
            case "convert_element_type", (a,):
                if {getattr(a, "dtype", None), dtype} <= {np.dtype(np.int32), np.dtype(np.int64)}:
                    return self.of(a)
            case _:
                pass
        return None

    def _operation(self, value: object) -> dict[object, int] | None:
        """Returns the variable of all values of one operation on the same integers, as `i // 4` written twice has."""
        name, operands, params = compat.made_of(value)
        terms = [self.of(operand) for operand in operands]
        if not name or None in terms:
            return None
        same = (name, *(frozenset(t.items()) for t in terms if t), *((key, id(part)) for key, part in params.items()))
        return {self.operations.setdefault(same, len(self.operations)): 1}


def _joined(a: dict[object, int], b: dict[object, int], factor: int) -> dict[object, int]:
    return {key: a.get(key, 0) + factor * b.get(key, 0) for key in {**a, **b}}
